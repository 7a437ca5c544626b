"""The example three-hospitals: it stops what it started and nothing else. The complete example is run by .ci/run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parents[2] / "examples" / "three-hospitals"


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(HERE))
    import processes

    return processes


SLEEPS = [
    sys.executable,
    "-c",
    "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])",
]


def call(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, HERE / script, "--folder", folder], capture_output=True, text=True)


def test_stop_ends_the_started_processes_with_descendants_and_no_others(processes, tmp_path):
    other = subprocess.Popen(SLEEPS)
    try:
        pid = processes.start(tmp_path, "north", SLEEPS, os.environ)
        while not processes.descendants(pid):
            pass
        pids = {pid} | processes.descendants(pid)
        assert processes.running(tmp_path) == {"north": pid}
        (tmp_path / "pids" / "gone").write_text(f"{other.pid} 12345\n")  # an id that another process has now
        assert processes.stop(tmp_path) == ["north"]
        assert not any(map(processes.start_time, pids))
        assert other.poll() is None
        assert processes.stop(tmp_path) == []
    finally:
        for child in processes.descendants(other.pid):
            os.kill(child, 9)
        other.kill()
        other.wait()


def test_start_refuses_to_run_twice(processes, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    processes.start(folder, "south", SLEEPS, os.environ)
    try:
        again = call("start", folder)
        assert again.returncode == 1
        assert "already running" in again.stderr
        assert "south" in again.stderr
    finally:
        assert "stopped: south" in call("stop", folder).stdout
    assert "contains an earlier run" in call("start", folder).stderr
    assert "nothing was running" in call("stop", folder).stdout


def test_a_failed_start_stops_what_it_started(processes, tmp_path):
    """The port is in use: the SuperLink cannot listen."""
    import socket

    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = str(used.getsockname()[1])
        folder = tmp_path / "run"
        done = subprocess.run(
            [sys.executable, HERE / "start", "--folder", folder, "--port", port], capture_output=True, text=True
        )
    assert done.returncode == 1
    assert "superlink did not start" in done.stderr
    assert "all processes are stopped" in done.stderr
    assert not processes.running(folder)


def test_each_hospital_has_separate_images_and_all_labels(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(HERE))
    import images

    from vitrail.data import load

    images.make(tmp_path, ("north", "south", "west"))
    contents = []
    for name in ("north", "south", "west"):
        files = sorted((tmp_path / name / "images").glob("*/*.png"))
        contents += [f.read_bytes() for f in files]
        found = load(f"folder:{tmp_path / name / 'images'}", size=16)
        assert found.classes == tuple("0123456789")
        assert found.shape == (1, 16, 16)
    assert len(set(contents)) == len(contents) == 10 * (30 + 10 + 10)
