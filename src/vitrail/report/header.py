"""What a model file says about itself, read from its header alone."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

_LONGEST = 100_000_000  # the format's own limit for a header


def read_about(path: Path) -> dict[str, Any]:
    """What a person should know of a model; nothing when the file is missing, damaged or of another kind."""
    try:
        with path.open("rb") as f:
            (length,) = struct.unpack("<Q", f.read(8))
            if length > min(_LONGEST, path.stat().st_size):
                return {}
            header = json.loads(f.read(length))
        tree = _plain(json.loads(header["__metadata__"]["vitrail"]))
        about = tree["about"]
    except (OSError, struct.error, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def _plain(node: Any) -> Any:
    """A tree's plain values (state.py has its layout); in place of an array stands None."""
    if not isinstance(node, dict):
        return node
    ((kind, value),) = node.items()
    if kind == "dict":
        return {str(k): _plain(v) for k, v in value}
    if kind in ("list", "tuple"):
        return [_plain(v) for v in value]
    return None
