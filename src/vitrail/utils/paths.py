"""The folder for files that belong to the user, not to one run, and the names of clients' private files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from urllib.parse import quote


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


def private_file(folder: Path, client: str) -> Path:
    """Return the file of a client's private state; it is inside the folder whatever the client's name is.

    Examples:
        >>> private_file(Path("clients"), "north/1").as_posix()
        'clients/north%2F1.safetensors'
    """
    name, raw = quote(client, safe=" "), client.encode()
    if len(name) > 150:
        name = hashlib.blake2b(len(raw).to_bytes(8, "little") + raw, digest_size=16).hexdigest()
    return folder / f"{name}.safetensors"
