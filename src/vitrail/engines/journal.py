"""Answers that came since the last checkpoint, one file each, by what was asked.

A server that is killed between two checkpoints asks again from the first of them; what a client had answered is then
read here, and a client is never asked for a round that it has left behind.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from vitrail.engines.replies import Failure
from vitrail.utils.atomic import write_atomically
from vitrail.wire.message import digest

_FAILED, _ANSWERED = b"\0", b"\1"


class Journal:
    """A folder of answers; `size` is how many bytes of them this process has written or read."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.size = folder, 0

    def place(self, client: str, request: bytes) -> Path:
        """The file of the answer to a request."""
        return self.folder / digest(client, request).hex()

    def read(self, place: Path) -> bytes | Failure | None:
        """What was answered, or None where nothing was."""
        try:
            raw = place.read_bytes()
        except FileNotFoundError:
            return None
        self.size += len(raw)
        return raw[1:] if raw.startswith(_ANSWERED) else Failure(raw[1:].decode(errors="replace"))

    def write(self, place: Path, answer: bytes | Failure) -> None:
        """Keep an answer; it is on the disk when this returns."""
        raw = _FAILED + answer.reason.encode(errors="replace") if isinstance(answer, Failure) else _ANSWERED + answer
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(place, raw, 0o600)
        self.size += len(raw)

    def clear(self) -> None:
        """Forget all: a checkpoint has them now."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.size = 0
