"""Seconds per round on each engine, and the overhead compared with a minimal Flower app.

    python benchmarks/flower.py [--rounds 20]

The same method and clients on the embedded engine, on Flower's simulation and on a Flower deployment over loopback.
The minimal app sends the same bytes both ways, over the same Grid, with the same imports in its client, and ignores
them; time inside `client_round` is measured and subtracted. Medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CLIENTS = 2
SETTINGS: dict[str, Any] = {
    "data": "digits", "size": 8, "clients": CLIENTS, "local_steps": 2, "batch_size": 10, "features": "vitrail-fashion",
    "grids": 0, "eval_every": 0,
}  # fmt: skip
BIN = Path(sys.executable).parent
APP = """
import json, time
from pathlib import Path
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

client = ClientApp()
server = ServerApp()

@client.train()
def _(message, context):
    import vitrail.engines.client, vitrail.experiment.deployment.client_app, vitrail.methods.prism.algorithm
    from vitrail.engines.flower.messages import pack, unpack
    text, data = unpack(message, 2**31)
    return Message(pack("", bytes(json.loads(text)["up"])), reply_to=message)

@server.main()
def _(grid, context):
    from vitrail.engines.flower.messages import pack
    todo = json.loads(Path(context.run_config["todo"]).read_text())
    while len(list(grid.get_node_ids())) < todo["clients"]:
        time.sleep(0.2)
    nodes = sorted(grid.get_node_ids())
    seconds = []
    for up, down in todo["bytes"]:
        began = time.perf_counter()
        text = json.dumps({"up": up})
        left = set(grid.push_messages([Message(pack(text, bytes(down)), n, "train") for n in nodes]))
        while left:
            left -= {m.metadata.reply_to_message_id for m in grid.pull_messages(list(left))}
            time.sleep(0.02)
        seconds.append(time.perf_counter() - began)
    Path(todo["answer"]).write_text(json.dumps(seconds))
"""
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "echo"
version = "0.1.0"
description = "Returns the requested number of bytes."
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "vitrail"
[tool.flwr.app.components]
serverapp = "echo:server"
clientapp = "echo:client"
[tool.flwr.app.config]
todo = ""
"""
TIMED = """
import sys, time
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pathlib import Path

class When(MetaPathFinder):
    def __init__(self, name, then):
        self.name, self.then = name, then

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            self.then(module)

        spec.loader.exec_module = exec_module
        return spec

def time_it(module):
    real = module.Prism.client_round
    def timed(self, state, message, data, rng):
        began = time.perf_counter()
        try:
            return real(self, state, message, data, rng)
        finally:
            with Path(WHERE).open("a") as f:
                f.write(f"{message.round} {time.perf_counter() - began}\\n")
    module.Prism.client_round = timed

sys.meta_path.insert(0, When("vitrail.methods.prism.algorithm", time_it))
"""


def port() -> int:
    """Return a free port."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def deployment(root: Path) -> Iterator[dict[str, str]]:
    """A SuperLink and its nodes on loopback, stopped at the end; yields the environment for `flwr`."""
    at = port()
    (root / "flwr").mkdir()
    (root / "flwr" / "config.toml").write_text(
        f'[superlink]\ndefault = "loop"\n[superlink.loop]\naddress = "127.0.0.1:{at}"\ninsecure = true\n'
    )
    timed = root / "timed"
    timed.mkdir()
    (timed / "sitecustomize.py").write_text(f"WHERE = {str(root / 'inside.txt')!r}\n{TIMED}")
    env = os.environ | {
        "FLWR_HOME": str(root / "flwr"), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(timed), os.environ.get("PYTHONPATH", "")])),
    }  # fmt: skip
    link = ["flower-superlink", "--insecure", "--disable-runtime-dependency-installation"]
    commands = [[*link, "--host", "127.0.0.1", "--port", str(at)]]
    for k in range(CLIENTS):
        config = f'name="client-{k}" data="digits" folder="{root / f"node-{k}"}" device="cpu" '
        config += f'partition="iid" partition-id={k} num-partitions={CLIENTS}'
        node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{at}", "--host", "127.0.0.1"]
        commands.append([*node, "--port", str(port()), "--node-config", config])
    processes = []
    try:
        for command in commands:
            log = (root / "log.txt").open("ab")
            processes.append(subprocess.Popen([str(BIN / command[0]), *command[1:]], stdout=log, stderr=log, env=env))
            time.sleep(3)
        yield env
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait()


def flwr_run(env: dict[str, str], app: Path, config: str, done: Path) -> None:
    """Start an app on the deployment and wait for its last file."""
    command = [str(BIN / "flwr"), "run", str(app), "loop", "-c", config]
    process = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
    if process.returncode:
        sys.exit(f"{' '.join(command)}: {process.stdout}{process.stderr}")
    while not done.exists():
        time.sleep(0.2)


def embedded(rounds: int, root: Path) -> list[float]:
    """Seconds of each round, in this process."""
    from vitrail.experiment.train import train

    run = train("prism", **SETTINGS, rounds=rounds, workers=1, out=str(root / "embedded"))
    return [row["seconds"] for row in run.rows]


def simulated(rounds: int, root: Path) -> list[float]:
    """Seconds of each round, on Flower's simulation."""
    from vitrail.experiment.train import train

    run = train("prism", **SETTINGS, rounds=rounds, workers=CLIENTS, engine="flower", out=str(root / "simulated"))
    return [row["seconds"] for row in run.rows]


def deployed(rounds: int, root: Path) -> tuple[list[float], list[float], list[float]]:
    """Seconds of each round on a deployment, of each round of the minimal app, and inside the slowest client_round."""
    from vitrail.engines import flower

    out, echo = root / "deployed", root / "echo"
    echo.mkdir()
    (echo / "echo.py").write_text(APP)
    (echo / "pyproject.toml").write_text(PROJECT)
    words = " ".join(f"{k}={v}" for k, v in SETTINGS.items() if k != "data")
    with deployment(root) as env:
        app = Path(str(flower.__file__)).parent / "app"
        config = f'settings="prism {words} rounds={rounds}" out="{out}"'
        flwr_run(env, app, config, out / "report.html")
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        sizes = [(max(row["up"].values()), max(row["down"].values())) for row in rows]
        todo = {"clients": CLIENTS, "bytes": sizes, "answer": str(root / "answer.json")}
        (root / "todo.json").write_text(json.dumps(todo))
        while "delivered" not in (out / "nodes.json").read_text():
            time.sleep(0.2)
        flwr_run(env, echo, f'todo="{root / "todo.json"}"', root / "answer.json")
    inside: dict[int, float] = {}
    for line in (root / "inside.txt").read_text().splitlines():
        t, seconds = line.split()
        inside[int(t)] = max(inside.get(int(t), 0.0), float(seconds))
    minimal = json.loads((root / "answer.json").read_text())
    return [row["seconds"] for row in rows], minimal, [inside[t] for t in range(rounds)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        print(f"prism, {CLIENTS} clients, {rounds} rounds; seconds per round, medians")
        print(f"  embedded            {statistics.median(embedded(rounds, root)):.3f}")
        print(f"  Flower simulation   {statistics.median(simulated(rounds, root)):.3f}")
        ours, minimal, inside = deployed(rounds, root)
    without = [a - b for a, b in zip(ours, inside, strict=True)]
    share = statistics.median(without) / statistics.median(minimal) - 1
    print(f"  Flower deployment   {statistics.median(ours):.3f}, of it in client_round {statistics.median(inside):.3f}")
    print(f"  Flower, minimal app {statistics.median(minimal):.3f}")
    print(f"overhead, client_round excluded: {share:.1%} (at most 25%)")
    sys.exit(share > 0.25)


if __name__ == "__main__":
    main()
