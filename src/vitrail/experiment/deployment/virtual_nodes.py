"""Flower's simulation: virtual nodes on this machine, over Ray, each with the images of one client."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.data.dataset import Images
from vitrail.engines.client import Client
from vitrail.engines.flower.descriptions import Description, RunSpec
from vitrail.experiment.deployment.mmap_dataset import read_mmap, write_mmap
from vitrail.experiment.deployment.specs import method_of, spec_of
from vitrail.privacy.budget import Budget
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng

if TYPE_CHECKING:
    from flwr.serverapp import Grid

    from vitrail.engines.flower.engine import FlowerEngine
    from vitrail.experiment.plan import Plan


@contextmanager
def simulation(plan: Plan, workers: int) -> Iterator[FlowerEngine]:
    """Start virtual nodes for the clients of a run.

    Args:
        plan: The run.
        workers: Number of clients that train at the same time.

    Yields:
        The engine.
    """
    with TemporaryDirectory(prefix="vitrail-") as root, virtual_nodes(root, len(plan.clients), workers) as nodes:
        yield nodes.engine(plan)


class VirtualNodes:
    """Virtual nodes that serve any run whose images were written for them."""

    def __init__(self, root: str, grid: Grid, workers: int, thread: threading.Thread) -> None:
        self.root, self.grid, self.workers, self.thread = root, grid, workers, thread

    def engine(self, plan: Plan) -> FlowerEngine:
        """Return the engine of one run."""
        from vitrail.engines.flower.engine import FlowerEngine
        from vitrail.engines.flower.roster import Roster
        from vitrail.engines.simulation import dropped

        s = plan.settings
        write_clients(plan, Path(self.root))
        roster = Roster(self.grid, spec_of(plan), s.timeout, self._check)
        roster.wait(plan.clients, s.timeout)
        dropout = partial(dropped, Rng((s.seed,)), s.client_dropout)
        return FlowerEngine(self.grid, roster, plan.method, max_pending=2 * self.workers, dropout=dropout)

    def _check(self) -> None:
        if not self.thread.is_alive():
            raise VitrailError("Flower's simulation has ended unexpectedly; see its log")


@contextmanager
def virtual_nodes(root: str, nodes: int, workers: int) -> Iterator[VirtualNodes]:
    """Run Flower's simulation in a thread, and stop it at the end.

    Args:
        root: Folder of the clients' images and facts.
        nodes: Number of virtual nodes.
        workers: Number of nodes that work at the same time.
    """
    from flwr.app import Context
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from vitrail.engines.flower.client import client_app

    for name in ("flwr", "ray"):
        logging.getLogger(name).setLevel(logging.ERROR)
    grids: Queue[Grid] = Queue()
    done = threading.Event()
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
        grids.put(grid)
        done.wait()

    clients = client_app(lambda context: VirtualNode(root, int(context.node_config["partition-id"])))
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    backend: Any = {
        "init_args": {"num_cpus": workers, "_node_ip_address": "127.0.0.1", **quiet},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    before = {name: value for name, value in os.environ.items() if name == "PYTHONPATH"}
    simulate = partial(run_simulation, server, clients, nodes, backend_config=backend)
    thread = threading.Thread(target=simulate, daemon=True)
    thread.start()
    try:
        yield VirtualNodes(root, grids.get(timeout=60), workers, thread)
    finally:
        done.set()
        thread.join()
        os.environ.pop("PYTHONPATH", None)  # Flower sets it to this process' path, for its own workers
        os.environ.update(before)


def write_clients(plan: Plan, root: Path) -> None:
    """Write a run's images and the facts of its clients for virtual nodes."""
    folder = root / plan.id.hex()
    write_mmap(plan.data.train, folder)
    indices = dict(zip(plan.partition.names, plan.partition.indices, strict=True))
    np.save(folder / "indices.npy", np.concatenate([indices[name] for name in plan.clients]))
    b = plan.budget
    facts = {
        "names": plan.clients,
        "ends": np.cumsum([len(indices[name]) for name in plan.clients]).tolist(),
        "folder": str(plan.folder.clients.resolve()),
        "budget": None if b is None else [b.name, b.epsilon, b.delta],
        "device": plan.method.task.device,
    }
    (folder / "clients.json").write_text(json.dumps(facts))


@dataclass(frozen=True)
class VirtualNode:
    """A client of a simulation at its virtual node; messages are not signed, because all parties are one machine."""

    root: str
    index: int

    def verify(self, spec: str, signed: bytes, purpose: str) -> bytes:  # noqa: ARG002
        """Return the message unchanged."""
        return signed

    def sign(self, request: bytes, reply: bytes, purpose: str) -> bytes:  # noqa: ARG002
        """Return the reply unchanged."""
        return reply

    def describe(self, spec: RunSpec) -> Description:
        """Return the description of this client."""
        name = _facts(self.root, spec.id)["names"][self.index]
        return Description(name, f"{self.index:064x}", spec.shape, spec.classes)

    def client(self, spec: RunSpec) -> Client:
        """Return this node as a client of the run."""
        facts = _facts(self.root, spec.id)
        name = facts["names"][self.index]
        budget = facts["budget"] and Budget(f"{facts['budget'][0]}/{name}", *facts["budget"][1:])
        run, rng = bytes.fromhex(spec.id), Rng((int(spec.settings["seed"]),))
        method = method_of(spec, facts["device"])
        return Client(name, method, run, rng, lambda: self._images(spec), Path(facts["folder"]), budget)

    def _images(self, spec: RunSpec) -> Images:
        start, end = [0, *_facts(self.root, spec.id)["ends"]][self.index : self.index + 2]
        train, indices = _train(self.root, spec.id)
        return train.take(indices[start:end])

    def keep(self, spec: RunSpec, model: bytes) -> bytes:  # noqa: ARG002
        """Store nothing: the model is in the run's folder on this machine."""
        return b""


@lru_cache(8)
def _facts(root: str, run: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((Path(root) / run / "clients.json").read_text())
    return facts


@lru_cache(8)
def _train(root: str, run: str) -> tuple[Images, Any]:
    """The images of a run and the clients' indices, mapped once per worker process."""
    folder = Path(root) / run
    return read_mmap(folder), np.load(folder / "indices.npy")
