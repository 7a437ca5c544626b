"""The folder that belongs to the user and not to a run."""

from __future__ import annotations

import os
from pathlib import Path


def data_home() -> Path:
    """The folder for downloads, caches, budgets and keys: $VITRAIL_HOME, or the platform's user data folder."""
    chosen = os.environ.get("VITRAIL_HOME")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return platformdirs.user_data_path("vitrail")
