"""Atomic file replacement and locks between processes."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError

from vitrail.utils.errors import VitrailError

_POSIX = os.name == "posix"  # elsewhere folders cannot be synced and files have no mode for other users


@contextmanager
def replace_atomically(path: Path, mode: int = 0o644) -> Iterator[Path]:
    """Yield the path of a temporary file that replaces `path` when the block ends.

    After an exception, a crash or a power cut, `path` has its old or its new content, never a mixture.

    Args:
        path: The file to write; its folder must exist.
        mode: Permissions of the new file, restricted by the umask. Ignored on Windows.

    Raises:
        VitrailError: If the file cannot be written.

    Examples:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with replace_atomically(folder / "a.txt") as part:
        ...     _ = part.write_text("new")
        >>> [f.name for f in folder.iterdir()]
        ['a.txt']
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield part
        if _POSIX:
            os.chmod(part, mode & ~_umask())  # the block may have replaced the temporary file by another
        _sync(part)
        os.replace(part, path)
        if _POSIX:
            _sync(path.parent)  # the new name must survive a power cut, too
    except (OSError, SafetensorError) as e:
        if isinstance(e, OSError) and e.errno is None:
            raise  # from a decoder in the block, not from the file system
        why = e.strerror if isinstance(e, OSError) else e
        raise VitrailError(f"cannot write {path}: {why}; free some space or choose another folder") from e
    finally:
        part.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Wait until a file's content, or a folder's entries, are on the disk."""
    handle = os.open(path, os.O_RDONLY if _POSIX else os.O_RDWR)  # Windows syncs writable handles only
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    """Return the umask of this process, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def write_atomically(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace the content of a file in one step.

    Args:
        path: The file to write; its folder must exist.
        data: The new content.
        mode: Permissions of the new file, restricted by the umask. Ignored on Windows.

    Raises:
        VitrailError: If the file cannot be written.
    """
    with replace_atomically(path, mode) as part:
        part.write_bytes(data)


@contextmanager
def file_lock(lock: Path) -> Iterator[None]:
    """Acquire an exclusive lock between processes and threads for the block; wait until it is free.

    The operating system releases the lock when the process ends, even after a kill.

    Args:
        lock: The lock file; it is created with its folder if missing, and stays.

    Examples:
        >>> import tempfile
        >>> with file_lock(Path(tempfile.mkdtemp()) / "folder" / ".lock"):
        ...     pass  # no other process is inside
    """
    lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with FileLock(lock).acquire(poll_interval=0.01):
        yield
