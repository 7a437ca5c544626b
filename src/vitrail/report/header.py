"""Read the description in a model file from its header, without loading its arrays."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

_MAX_HEADER = 100_000_000  # the format's own limit for a header


def read_about(path: Path) -> dict[str, Any]:
    """Return the `about` entry of a model file; empty if the file is missing, damaged or of another kind."""
    try:
        with path.open("rb") as f:
            (length,) = struct.unpack("<Q", f.read(8))
            if length > min(_MAX_HEADER, path.stat().st_size):
                return {}
            header = json.loads(f.read(length))
        tree = _plain(json.loads(header["__metadata__"]["vitrail"]))
        about = tree["about"]
    except (OSError, struct.error, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def _plain(node: Any) -> Any:
    """Return the plain values of a tree (for its layout see utils/state.py); arrays become None."""
    if not isinstance(node, dict):
        return node
    ((kind, value),) = node.items()
    if kind == "dict":
        return {str(k): _plain(v) for k, v in value}
    if kind in ("list", "tuple"):
        return [_plain(v) for v in value]
    return None
