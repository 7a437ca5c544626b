"""Flower's own processes on loopback, for tests: each is started by name and stopped, with all it started, at the end."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

BIN = Path(sys.executable).parent
LINES = 2000  # characters of a log that a failed test shows


def free_port():
    """A port that nobody listens on now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Sites:
    """To be used in a `with` block; `keys` are those that `vitrail certificates` made, None: no TLS."""

    def __init__(self, folder, keys=None, **environment):
        self.folder, self.keys, self.port = Path(folder), keys, free_port()
        self.started, self.logs = {}, {}
        self.flower = self.folder / "flower"
        self.flower.mkdir(parents=True)
        root = f'root-certificates = "{keys}/superlink/ca.crt"' if keys else "insecure = true"
        (self.flower / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n{root}\n'
        )
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(self.flower),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "NO_COLOR": "1",
            **environment,
        }

    def __enter__(self):
        return self

    def __exit__(self, *_):
        alive = {pid for p in self.started.values() for pid in (p.pid, *descendants(p.pid))}
        for process in self.started.values():
            process.terminate()
        for process in self.started.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
        for pid in alive | {pid for p in self.started.values() for pid in descendants(p.pid)}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.started.values():
            process.wait()

    def start(self, name, *command, **environment):
        """A process whose log is kept under its name."""
        self.logs[name] = self.folder / f"{name}.log"
        with self.logs[name].open("wb") as log:
            self.started[name] = subprocess.Popen(
                list(map(str, command)),
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment | environment,
                cwd=self.folder,
            )
        return self.started[name]

    def superlink(self, *more, **environment):
        """The SuperLink, once it listens; with keys, TLS and SuperNode authentication are on."""
        secure = ["--insecure"]
        if self.keys:
            place = Path(self.keys) / "superlink"
            secure = ["--ssl-ca-certfile", place / "ca.crt", "--ssl-certfile", place / "server.crt"]
            secure += ["--ssl-keyfile", place / "server.key", "--enable-supernode-auth"]
        database = ["--database", self.folder / "state.db", "--disable-runtime-dependency-installation"]
        where = ["--host", "127.0.0.1", "--port", self.port]
        self.start("superlink", BIN / "flower-superlink", *where, *secure, *database, *more, **environment)
        self.until("superlink", "Uvicorn running")

    def supernode(self, name, config="", key=None, ca=None, command=(BIN / "flower-supernode",), **environment):
        """A SuperNode; `key` and `ca` are files, without a ca it speaks plain text."""
        secure = ["--root-certificates", ca] if ca else ["--insecure"]
        secure += ["--auth-supernode-private-key", key] if key else []
        where = ["--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1", "--port", free_port()]
        config = ["--node-config", config] if config else []
        return self.start(name, *command, *where, *secure, *config, "--max-retries", "1", **environment)

    def flwr(self, *arguments, **environment):
        """A command of the `flwr` tool, to its end."""
        return subprocess.run(
            list(map(str, (BIN / "flwr", *arguments))),
            env=self.environment | environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=600,
        )

    def run(self, settings, out, **environment):
        """A run of vitrail over all nodes that are there, to its end."""
        from vitrail.engines.flower import __file__ as here

        app = Path(here).parent / "app"
        given = f'settings="{settings}" out="{out}"'
        return self.flwr("run", app, "here", "--stream", "-c", given, **environment)

    def log(self, name):
        """What a process has said so far."""
        return self.logs[name].read_text(errors="replace")

    def until(self, name, words, seconds=240):
        """Wait until a process has said this."""
        end = time.monotonic() + seconds
        while words not in self.log(name):
            assert time.monotonic() < end, f"{name} did not say {words!r}: {self.log(name)[-LINES:]}"
            ended = self.started[name].poll()
            assert ended is None or words in self.log(name), f"{name} ended with {ended}: {self.log(name)[-LINES:]}"
            time.sleep(0.1)

    def ended(self, name, seconds=240):
        """The exit code of a process that ends by itself."""
        return self.started[name].wait(seconds)


def descendants(pid):
    """All processes that this one started, and those that they started."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found, todo = set(), {pid}
    while todo:
        todo = {child for child, parent in parents.items() if parent in todo} - found
        found |= todo
    return found


def listening(pids):
    """The addresses on which these processes listen, as hexadecimal: 0100007F is 127.0.0.1."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(fd))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                found.add(words[1].partition(":")[0])
    return found
