"""A deployment with TLS, SuperNode authentication, signing keys and node configs."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.experiment.deployment.processes import BIN, Deployment, free_port, until

PATIENCE = 240  # seconds; a machine may be busy with other tests


class Sites(Deployment):
    """A context manager; `keys` is the folder that `vitrail certificates` created."""

    def __init__(self, root: Path, keys: Path, **env: str) -> None:
        root.mkdir()
        super().__init__(root)
        self.keys = keys
        self.env |= {"NO_COLOR": "1", **env}
        (root / "flwr" / "config.toml").write_text(
            f'[superlink.loop]\naddress = "127.0.0.1:{self.port}"\nroot-certificates = "{keys}/superlink/ca.crt"\n'
        )

    def __enter__(self) -> Sites:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def superlink(self) -> None:
        own = self.keys / "superlink"
        self.start(
            "link", "flower-superlink", "--disable-runtime-dependency-installation", "--enable-supernode-auth",
            "--host", "127.0.0.1", "--port", str(self.port), "--database", str(self.root / "state.db"),
            "--ssl-ca-certfile", str(own / "ca.crt"), "--ssl-certfile", str(own / "server.crt"),
            "--ssl-keyfile", str(own / "server.key"),
        )  # fmt: skip
        self.wait_for("link", "Uvicorn running")

    def register(self, *names: str) -> None:
        """Register these nodes."""
        for name in names:
            key = self.keys / "superlink" / "nodes" / f"{name}.pub"
            returned = self.flwr("supernode", "register", str(key), "loop")
            assert "registered successfully" in returned, returned

    def supernode(
        self, name: str, *more: str, key: Path | None = None, ca: Path | None = None, command=("flower-supernode",)
    ) -> None:
        """Start a SuperNode; without a `ca` it uses plain text."""
        secure = ["--root-certificates", str(ca)] if ca else ["--insecure"]
        secure += ["--auth-supernode-private-key", str(key)] if key else []
        where = ["--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1", "--port", str(free_port())]
        self.start(name, *command, *where, *secure, *more, "--max-retries", "1")

    def flwr(self, *words: str) -> str:
        """Run a command of Flower; return its output."""
        done = subprocess.run([str(BIN / "flwr"), *words], env=self.env, capture_output=True, text=True, timeout=600)
        return done.stdout + done.stderr

    def log(self, name: str) -> str:
        """Return the output of a process so far."""
        return (self.root / f"{name}.log").read_text(errors="replace")

    def wait_for(self, name: str, words: str) -> None:
        """Wait until a process has printed this."""
        until(lambda: words in self.log(name) or self.running[name].poll() is not None, PATIENCE, f"{name} is silent")
        assert words in self.log(name), self.log(name)[-2000:]
