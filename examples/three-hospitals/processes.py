"""Processes that one command starts and another stops: a file for each holds its number and when it began."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PATIENCE = 10.0  # seconds between asking a process to end and ending it


def start(folder: Path, name: str, command: Sequence[str | Path], environment: Mapping[str, str]) -> int:
    """Start a process whose output goes to NAME.log, and note it in pids/NAME."""
    (folder / "pids").mkdir(exist_ok=True)
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,  # Ctrl-C is for `start`, which then stops them in order
        )
    (folder / "pids" / name).write_text(f"{process.pid} {birth(process.pid)}\n")
    return process.pid


def running(folder: Path) -> dict[str, int]:
    """Which of the processes noted in a folder are still there; a number that was given to another one is not."""
    found = {}
    for path in sorted((folder / "pids").glob("*")):
        pid, born = path.read_text().split()
        if birth(int(pid)) == born:
            found[path.name] = int(pid)
    return found


def stop(folder: Path) -> list[str]:
    """End the processes noted in a folder and those that they started; their names."""
    names, pids = [], set()
    for name, pid in running(folder).items():
        names.append(name)
        pids |= {pid} | descendants(pid)
    for pid in pids:
        _signal(pid, signal.SIGTERM)
    end = time.monotonic() + PATIENCE
    while any(map(birth, pids)) and time.monotonic() < end:
        _reap()
        time.sleep(0.1)
    for pid in pids:
        _signal(pid, signal.SIGKILL)
    while any(map(birth, pids)):
        _reap()
        time.sleep(0.05)
    for path in (folder / "pids").glob("*"):
        path.unlink()
    return names


def birth(pid: int) -> str:
    """When a process began, as its system counts; empty: it is not there."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] == "Z" else fields[19]
    return ""


def descendants(pid: int) -> set[int]:
    """All processes that this one started, and those that they started."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found: set[int] = set()
    todo = {pid}
    while todo:
        todo = {child for child, parent in parents.items() if parent in todo} - found
        found |= todo
    return found


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _reap() -> None:
    """Let go of our own children that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
