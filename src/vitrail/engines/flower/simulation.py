"""Flower's simulation: virtual nodes on this machine, over Ray, each with the pictures of one client."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.data.dataset import Images
from vitrail.engines.client import Client
from vitrail.engines.flower.description import Description
from vitrail.engines.flower.mmap_dataset import read_mmap, write_mmap
from vitrail.engines.flower.run_spec import RunSpec
from vitrail.privacy.budget import Budget
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng

if TYPE_CHECKING:
    from flwr.serverapp import Grid

    from vitrail.engines.flower.engine import FlowerEngine
    from vitrail.experiment.plan import Plan


@contextmanager
def simulation(plan: Plan, workers: int) -> Iterator[FlowerEngine]:
    """The engine of a run whose clients are virtual nodes; `workers` of them train at a time."""
    with TemporaryDirectory(prefix="vitrail-") as root, virtual_nodes(root, len(plan.clients), workers) as nodes:
        yield nodes.engine(plan)


class VirtualNodes:
    """Nodes that are there for any run whose pictures were laid out for them."""

    def __init__(self, root: str, grid: Grid, workers: int, thread: threading.Thread) -> None:
        self.root, self.grid, self.workers, self.thread = root, grid, workers, thread

    def engine(self, plan: Plan) -> FlowerEngine:
        """The engine of one run."""
        from vitrail.engines.flower.engine import FlowerEngine
        from vitrail.engines.flower.roster import Roster
        from vitrail.engines.simulation import dropped

        s = plan.settings
        lay_out(plan, Path(self.root))
        roster = Roster(self.grid, RunSpec.of(plan), s.timeout, self._check)
        rng = Rng((s.seed,))
        roster.wait(plan.clients, s.timeout)
        return FlowerEngine(
            self.grid,
            roster,
            plan.method,
            most=2 * self.workers,
            drops=lambda c, m: dropped(rng, s.client_dropout, c, m),
        )

    def _check(self) -> None:
        if not self.thread.is_alive():
            raise VitrailError("Flower's simulation has ended by itself; its log says why")


@contextmanager
def virtual_nodes(root: str, nodes: int, workers: int) -> Iterator[VirtualNodes]:
    """Start Flower's simulation beside this thread, and stop it at the end."""
    from flwr.app import Context
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from vitrail.engines.flower.client import client_app

    for name in ("flwr", "ray"):
        logging.getLogger(name).setLevel(logging.ERROR)
    given: Queue[Grid] = Queue()
    done = threading.Event()
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
        given.put(grid)
        done.wait()

    def party(context: Context) -> VirtualNode:
        return VirtualNode(root, int(context.node_config["partition-id"]))

    backend: Any = {
        "init_args": {
            "num_cpus": workers,
            "log_to_driver": False,
            "logging_level": logging.ERROR,
            "_node_ip_address": "127.0.0.1",
        },
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    before = {name: value for name, value in os.environ.items() if name == "PYTHONPATH"}
    thread = threading.Thread(
        target=run_simulation, args=(server, client_app(party), nodes), kwargs={"backend_config": backend}, daemon=True
    )
    thread.start()
    try:
        yield VirtualNodes(root, given.get(timeout=60), workers, thread)
    finally:
        done.set()
        thread.join()
        os.environ.pop("PYTHONPATH", None)  # Flower sets it to this process' path, for its own workers
        os.environ.update(before)


def lay_out(plan: Plan, root: Path) -> None:
    """Write a run's pictures where virtual nodes can map them into their memory, each its own."""
    place = root / plan.id.hex()
    write_mmap(plan.data.train, place)
    holds = dict(zip(plan.partition.names, plan.partition.indices, strict=True))
    np.save(place / "holds.npy", np.concatenate([holds[name] for name in plan.clients]))
    b = plan.budget
    facts = {
        "names": plan.clients,
        "ends": np.cumsum([len(holds[name]) for name in plan.clients]).tolist(),
        "folder": str(plan.folder.clients.resolve()),
        "budget": None if b is None else [b.name, b.epsilon, b.delta],
        "device": plan.method.task.device,
    }
    (place / "crew.json").write_text(json.dumps(facts))


@dataclass(frozen=True)
class VirtualNode:
    """A client of a simulation at its node."""

    root: str
    index: int

    def opened(self, text: str, carried: bytes, what: str) -> bytes:  # noqa: ARG002
        """As it came: all parties are on this machine."""
        return carried

    def closed(self, request: bytes, reply: bytes, what: str) -> bytes:  # noqa: ARG002
        """As it is."""
        return reply

    def describe(self, terms: RunSpec) -> Description:
        """Who this is in the run."""
        name = _facts(self.root, terms.id)["names"][self.index]
        return Description(name, f"{self.index:064x}", terms.shape, terms.classes)

    def client(self, terms: RunSpec) -> Client:
        """This node as a client of the run."""
        facts = _facts(self.root, terms.id)
        name = facts["names"][self.index]
        budget = facts["budget"] and Budget(f"{facts['budget'][0]}/{name}", *facts["budget"][1:])
        run, rng = bytes.fromhex(terms.id), Rng((int(terms.settings["seed"]),))
        method = terms.method(facts["device"])
        return Client(name, method, run, rng, lambda: self._pictures(terms), Path(facts["folder"]), budget)

    def _pictures(self, terms: RunSpec) -> Images:
        start, end = [0, *_facts(self.root, terms.id)["ends"]][self.index : self.index + 2]
        train, holds = _train(self.root, terms.id)
        return train.take(holds[start:end])

    def keep(self, terms: RunSpec, model: bytes) -> bytes:  # noqa: ARG002
        """Store nothing: the model is in the run's folder, on this machine."""
        return b""


@lru_cache(8)
def _facts(root: str, run: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((Path(root) / run / "crew.json").read_text())
    return facts


@lru_cache(8)
def _train(root: str, run: str) -> tuple[Images, Any]:
    """All pictures of a run, mapped once in a worker process."""
    place = Path(root) / run
    return read_mmap(place), np.load(place / "holds.npy")
