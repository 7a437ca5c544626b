"""A deployment on loopback: a SuperLink and SuperNodes, one process each, stopped at the end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.experiment.deployment.sockets import family
from vitrail.experiment.run_dir import RunDir

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def until(what: Callable[[], bool], seconds: float, message: str) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, message
        time.sleep(0.1)


def _ends_with_us() -> None:
    """In a new process: end with the tests, even if they are killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _gone(pid: int) -> bool:
    """Whether a process has ended and closed its sockets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class Deployment:
    """Processes by name; their output is in files of the same name."""

    def __init__(self, root: Path) -> None:
        self.root, self.port = root, free_port()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        home = root / "flwr"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "loop"\n[superlink.loop]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        self.env = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(["src", os.environ.get("PYTHONPATH", "")]),
        }

    def start(self, name: str, *command: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        log = (self.root / f"{name}.log").open("ab")
        process = subprocess.Popen(
            [str(BIN / command[0]), *command[1:]], stdout=log, stderr=log, env=env or self.env,
            start_new_session=True, preexec_fn=_ends_with_us,  # noqa: PLW1509
        )  # fmt: skip
        self.running[name] = process
        return process

    def superlink(self) -> None:
        self.start(
            "link", "flower-superlink", "--insecure", "--disable-runtime-dependency-installation",
            "--host", "127.0.0.1", "--port", str(self.port), "--database", str(self.root / "state.db"),
        )  # fmt: skip
        until(self._answers, 90, "the SuperLink does not listen")

    def _answers(self) -> bool:
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) == 0

    def node(self, k: int, of: int, *, lies: bool = False) -> None:
        config = (
            f'name="client-{k}" data="digits" folder="{self.root / f"node-{k}"}" device="cpu" '
            f'partition="iid" partition-id={k} num-partitions={of}'
        )
        paths = os.pathsep.join([str(HERE / "liar"), self.env["PYTHONPATH"]])
        self.start(
            f"node-{k}", "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self.port}",
            "--host", "127.0.0.1", "--port", str(free_port()), "--node-config", config,
            env=self.env | ({"PYTHONPATH": paths} if lies else {}),
        )  # fmt: skip

    def run(self, settings: str, out: Path) -> subprocess.Popen[bytes]:
        app = subprocess.run(
            [sys.executable, "-m", "vitrail.engines.flower"], env=self.env, capture_output=True, text=True, check=True
        ).stdout.strip()
        return self.start("flwr", "flwr", "run", app, "loop", "--stream", "-c", f'settings="{settings}" out="{out}"')

    def kill(self, name: str) -> None:
        """Send SIGKILL to a process and its descendants, one by one."""
        self.kill_all(family(self.running.pop(name).pid))

    def kill_all(self, pids: list[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: all(map(_gone, pids)), 60, "a killed process is still there")

    def apps(self, name: str) -> list[int]:
        """Processes of a SuperLink's ServerApp or a SuperNode's ClientApp."""
        found = []
        for pid in family(self.running[name].pid):
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"flwr-serverapp" in command or b"flwr-clientapp" in command:
                    found.append(pid)
        return found

    def rounds(self, out: Path) -> int:
        return len(RunDir(out).rows())

    def done(self, out: Path, seconds: float) -> None:
        """Wait until a run has delivered its model; otherwise show the last output."""

        def ended() -> bool:
            return (out / "nodes.json").exists() and "delivered" in (out / "nodes.json").read_text()

        until(ended, seconds, (self.root / "flwr.log").read_text()[-3000:])

    def pids(self) -> list[int]:
        return [pid for process in self.running.values() for pid in family(process.pid)]

    def stop(self) -> None:
        all_pids = self.pids()
        self.kill_all(all_pids)
        for process in self.running.values():
            process.wait()


@contextlib.contextmanager
def deployment(root: Path) -> Iterator[Deployment]:
    """A deployment without nodes, whose processes are stopped at the end."""
    made = Deployment(root)
    try:
        made.superlink()
        yield made
    finally:
        made.stop()
