"""A secret that a client and the server were given beforehand, in a file: 32 random bytes as 64 hex digits.

    (umask 077; openssl rand -hex 32 > client-0.key)

makes one. A client needs its own, the server those of all clients. Texts of errors travel, so none has a path or a
byte.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from urllib.parse import quote

from vitrail.utils.errors import VitrailError
from vitrail.utils.paths import data_home

_MAKE = "make one with `openssl rand -hex 32`, give client and server the same, and `chmod 600` it"


def folder() -> Path:
    """Where this machine has its key files: $VITRAIL_KEYS, or `keys` in the folder of downloads and budgets."""
    chosen = os.environ.get("VITRAIL_KEYS")
    return Path(chosen).expanduser() if chosen else data_home() / "keys"


def file_name(client: str) -> str:
    """The name of a client's file, which lies in the folder whatever the client is called.

    >>> file_name("client-0"), file_name("../x")
    ('client-0.key', '..%2Fx.key')
    """
    return f"{quote(client, safe=' ')}.key"


def read_key(client: str) -> bytes:
    """The 32 bytes of a client's file; one that is missing, broken or open to others is refused."""
    name, where = file_name(client), "the folder that VITRAIL_KEYS names (by default `keys` in VITRAIL_HOME)"
    try:
        with (folder() / name).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(100)
    except OSError as e:
        raise VitrailError(f"key_source=file: {name} cannot be read in {where}: {e.strerror}; {_MAKE}") from None
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise VitrailError(
            f"key_source=file: {name} is open to others than its owner (mode {stat.S_IMODE(mode):03o}); `chmod 600` "
            "it, or make a new one if somebody may have read it"
        )
    if not re.fullmatch(rb"[0-9a-fA-F]{64}\r?\n?", raw):
        raise VitrailError(f"key_source=file: {name} does not hold 64 hex digits and nothing else; {_MAKE}")
    return bytes.fromhex(raw.decode("ascii"))
