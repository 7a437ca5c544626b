"""Values that are costly to compute and never change, kept in the home folder under a name of their content."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import platformdirs

from vitrail.errors import Malformed, VitrailError
from vitrail.state import State, load, save
from vitrail.wire.message import digest


def home() -> Path:
    """The folder for downloads, caches and budgets: $VITRAIL_HOME, or the platform's user data folder."""
    chosen = os.environ.get("VITRAIL_HOME")
    return Path(chosen) if chosen else platformdirs.user_data_path("vitrail")


def remember(kind: str, key: str, compute: Callable[[], State]) -> State:
    """Compute once and keep; derived from private pictures, so readable by the owner alone."""
    path = home() / "cache" / kind / f"{digest(key).hex()}.safetensors"
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
