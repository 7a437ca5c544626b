"""Names of the files that store clients' private states."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import quote


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
