"""Secrets that a client and the server were given in a file: 32 random bytes as 64 hex digits.

`(umask 077; openssl rand -hex 32 > client-0.key)` creates one. A client needs its own file, the server those of all
clients. Error messages are sent to other parties, so they contain no path and no byte of a secret.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote

from vitrail.utils.errors import VitrailError
from vitrail.utils.keys import check_owner_only
from vitrail.utils.paths import data_home

_CREATE = "create one with `openssl rand -hex 32`, copy it to client and server, and `chmod 600` it"


def key_folder() -> Path:
    """Return the folder of this machine's key files: $VITRAIL_KEYS, or `keys` in $VITRAIL_HOME."""
    chosen = os.environ.get("VITRAIL_KEYS")
    return Path(chosen).expanduser() if chosen else data_home() / "keys"


def file_name(client: str) -> str:
    """Return the name of a client's key file; it has no path separator, whatever the client's name is.

    Examples:
        >>> file_name("client-0"), file_name("../x")
        ('client-0.key', '..%2Fx.key')
    """
    return f"{quote(client, safe=' ')}.key"


def read_key(client: str) -> bytes:
    """Read the secret in a client's key file.

    Args:
        client: The client's name.

    Returns:
        32 bytes.

    Raises:
        VitrailError: If the file is missing, is not 64 hex digits, or can be read by others than its owner.
    """
    name, where = file_name(client), "the folder that VITRAIL_KEYS names (default: `keys` in VITRAIL_HOME)"
    try:
        with (key_folder() / name).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(100)
    except OSError as e:
        raise VitrailError(f"key_source=file: {name} cannot be read in {where}: {e.strerror}; {_CREATE}") from None
    check_owner_only(f"key_source=file: {name}", mode)
    if not re.fullmatch(rb"[0-9a-fA-F]{64}\r?\n?", raw):
        raise VitrailError(f"key_source=file: {name} must contain exactly 64 hex digits; {_CREATE}")
    return bytes.fromhex(raw.decode("ascii"))
