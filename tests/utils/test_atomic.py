"""Atomic replacement of files, and locks between processes."""

from __future__ import annotations

import multiprocessing as mp
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from vitrail.utils.atomic import file_lock, replace_atomically, write_atomically
from vitrail.utils.errors import VitrailError


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "f"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(VitrailError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, OSError("a decoder's")])
def test_an_exception_while_writing_leaves_the_old_file_and_is_raised(tmp_path, error):
    (tmp_path / "a").write_text("old")

    def interrupted():
        with replace_atomically(tmp_path / "a") as part:
            part.write_text("half of the n")
            raise error

    with pytest.raises(error if isinstance(error, type) else OSError):
        interrupted()
    assert (tmp_path / "a").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_permissions_are_set_where_the_system_has_them(tmp_path, monkeypatch):
    write_atomically(tmp_path / "private", b"", 0o600)
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o600
    monkeypatch.setattr("vitrail.utils.atomic._POSIX", False)  # as on Windows: no modes, no sync of folders
    write_atomically(tmp_path / "a", b"x", 0o644)
    assert (tmp_path / "a").read_bytes() == b"x"


def increment(folder: Path, times: int) -> None:
    """Add to a counter in a file, slowly enough for two processes to overwrite each other without a lock."""
    for _ in range(times):
        with file_lock(folder / "locks" / ".lock"):
            value = int((folder / "counter").read_text())
            time.sleep(0.002)
            (folder / "counter").write_text(str(value + 1))


def test_a_lock_excludes_spawned_processes_and_threads(tmp_path):
    (tmp_path / "counter").write_text("0")
    spawn = mp.get_context("spawn")  # the only start method on Windows
    workers = [spawn.Process(target=increment, args=(tmp_path, 20)) for _ in range(2)]
    workers += [threading.Thread(target=increment, args=(tmp_path, 20)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (tmp_path / "counter").read_text() == "80"


def wait_with_lock(folder: Path) -> None:
    with file_lock(folder / ".lock"):
        (folder / "locked").touch()
        time.sleep(60)


def test_a_lock_ends_with_a_killed_process(tmp_path):
    process = mp.get_context("spawn").Process(target=wait_with_lock, args=(tmp_path,))
    process.start()
    while not (tmp_path / "locked").exists():
        assert process.is_alive()
        time.sleep(0.02)
    process.kill()
    process.join()
    with file_lock(tmp_path / ".lock"):
        pass
