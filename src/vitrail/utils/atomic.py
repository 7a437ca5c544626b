"""Files written whole or not at all, and locks between processes."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from vitrail.utils.errors import VitrailError


@contextmanager
def replacing(path: Path, mode: int) -> Iterator[Path]:
    """A new file to be filled, which then takes the place of another.

    A reader, a crash or a power cut leaves the old or the new, never a mixture.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield part
        os.chmod(part, mode & ~_umask())  # whoever filled it may have put another file in its place
        _sync(part)
        os.replace(part, path)
        _sync(path.parent)  # the new name, too, must outlive a power cut
    except (OSError, SafetensorError) as e:
        why = e.strerror if isinstance(e, OSError) else e
        raise VitrailError(f"cannot write {path}: {why}; free some space or choose another place") from e
    finally:
        part.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    """What this process lets nobody else do; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def write_atomically(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace a file's content as a whole."""
    with replacing(path, mode) as part:
        part.write_bytes(data)


@contextmanager
def file_lock(lock: Path) -> Iterator[None]:
    """Wait until no other process is inside under this lock; it ends with the process, however that ends."""
    lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
