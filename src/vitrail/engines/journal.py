"""Replies received since the last checkpoint, one file each.

A server that is killed between two checkpoints repeats its requests from the first of them. Stored replies are then
read here, so a client is never sent a request for a round that it has left behind.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from vitrail.engines.replies import Failure
from vitrail.utils.atomic import write_atomically
from vitrail.wire.message import digest

_FAILED, _ANSWERED = b"\0", b"\1"


class Journal:
    """A folder of replies.

    Args:
        folder: Where they are stored; created when the first is written.

    Attributes:
        size: Number of bytes that this object has written or read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.size = folder, 0

    def path(self, client: str, request: bytes) -> Path:
        """Return the file of the reply to a request."""
        return self.folder / digest(client, request).hex()

    def read(self, path: Path) -> bytes | Failure | None:
        """Return a stored reply, or None if there is none."""
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return None
        self.size += len(raw)
        return raw[1:] if raw.startswith(_ANSWERED) else Failure(raw[1:].decode(errors="replace"))

    def write(self, path: Path, answer: bytes | Failure) -> None:
        """Store a reply; it is on disk when this returns."""
        raw = _FAILED + answer.reason.encode(errors="replace") if isinstance(answer, Failure) else _ANSWERED + answer
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, raw, 0o600)
        self.size += len(raw)

    def clear(self) -> None:
        """Delete all replies; call this once a checkpoint contains them."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.size = 0
