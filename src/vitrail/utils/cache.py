"""Values that are costly to compute and never change, kept in the home folder and named by their content."""

from __future__ import annotations

from collections.abc import Callable

from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.paths import data_home
from vitrail.utils.state import State, load, save
from vitrail.wire.message import digest


def remember(kind: str, key: str, compute: Callable[[], State]) -> State:
    """Compute once and keep; derived from private pictures, so readable by the owner alone."""
    path = data_home() / "cache" / kind / f"{digest(key).hex()}.safetensors"
    try:
        found: State = load(path)
        return found
    except (FileNotFoundError, Malformed):
        value = compute()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        save(path, value, private=True)
    except (OSError, VitrailError):
        pass  # a home that cannot be written costs time, not the run
    return value
