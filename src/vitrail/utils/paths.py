"""The folder for files that belong to the user, not to one run."""

from __future__ import annotations

import os
from pathlib import Path


def data_home() -> Path:
    """Return the folder for downloads, caches, privacy budgets and keys.

    Returns:
        The value of the environment variable VITRAIL_HOME, or else the platform's folder for user data.
    """
    chosen = os.environ.get("VITRAIL_HOME")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return platformdirs.user_data_path("vitrail")
