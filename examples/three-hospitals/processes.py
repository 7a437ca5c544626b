"""Processes that one command starts and another stops: one file per process has its id and start time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PATIENCE = 10.0  # seconds between SIGTERM and SIGKILL


def start(folder: Path, name: str, command: Sequence[str | Path], environment: Mapping[str, str]) -> int:
    """Start a process with its output in NAME.log, and record it in pids/NAME."""
    (folder / "pids").mkdir(exist_ok=True)
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,  # Ctrl-C must reach only `start`, which then stops the others
        )
    (folder / "pids" / name).write_text(f"{process.pid} {start_time(process.pid)}\n")
    return process.pid


def running(folder: Path) -> dict[str, int]:
    """Return the recorded processes that still run; an id that was reused by another process does not count."""
    found = {}
    for path in sorted((folder / "pids").glob("*")):
        pid, started = path.read_text().split()
        if start_time(int(pid)) == started:
            found[path.name] = int(pid)
    return found


def stop(folder: Path) -> list[str]:
    """End the recorded processes and their descendants; return their names."""
    names, pids = [], set()
    for name, pid in running(folder).items():
        names.append(name)
        pids |= {pid} | descendants(pid)
    for pid in pids:
        _signal(pid, signal.SIGTERM)
    end = time.monotonic() + PATIENCE
    while any(map(start_time, pids)) and time.monotonic() < end:
        _reap()
        time.sleep(0.1)
    for pid in pids:
        _signal(pid, signal.SIGKILL)
    while any(map(start_time, pids)):
        _reap()
        time.sleep(0.05)
    for path in (folder / "pids").glob("*"):
        path.unlink()
    return names


def start_time(pid: int) -> str:
    """Return the start time of a process as in /proc; empty if it does not run."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] == "Z" else fields[19]
    return ""


def descendants(pid: int) -> set[int]:
    """Return all processes that a process started, directly or indirectly."""
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
    """Collect the exit status of own children that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
