"""The embedded engine: all clients on this machine, one after another or over worker processes.

A client's state is in its file, so memory does not grow with the number of clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrail.data.dataset import Images
from vitrail.engines.client import Client
from vitrail.engines.federation import RoundResult
from vitrail.engines.replies import Failure
from vitrail.engines.workers import Worker, check_importable, share_images
from vitrail.methods.base import Method
from vitrail.privacy.budget import Budget
from vitrail.utils.determinism import one_thread
from vitrail.utils.rng import Rng
from vitrail.wire.message import digest


@dataclass(frozen=True)
class SimulatedClients:
    """All clients of a simulation.

    Args:
        method: The method.
        run: Id of the run.
        rng: Random stream of the run.
        indices: Positions of each client's images in the training set.
        folder: Folder of the clients' private files.
        budget: Privacy budget of each client; its name is the prefix of theirs.
    """

    method: Method
    run: bytes
    rng: Rng
    indices: Mapping[str, NDArray[np.int64]]
    folder: Path
    budget: Budget | None = None

    def client(self, name: str, train: Images) -> Client:
        """Return one of the clients.

        Args:
            name: Its name, a key of `indices`.
            train: The training set of all clients.
        """
        budget = self.budget and replace(self.budget, name=f"{self.budget.name}/{name}")
        return Client(
            name, self.method, self.run, self.rng, lambda: train.take(self.indices[name]), self.folder, budget
        )


class SimulationEngine:
    """Runs simulated clients; a context manager that stops its worker processes.

    Args:
        clients: The clients.
        train: The training set of all clients.
        workers: Number of worker processes; 1: clients run in this process.
        dropout: Probability that a client does not answer a request. It is decided by the seed, the client and the
            request, so it does not depend on the number of workers.

    Raises:
        VitrailError: There are several workers, and the method cannot be loaded by another process.
    """

    def __init__(self, clients: SimulatedClients, train: Images, workers: int = 1, dropout: float = 0.0) -> None:
        self.clients, self.train, self.dropout = clients, train, dropout
        if workers > 1:
            check_importable(clients)
        self.shared = share_images(train) if workers > 1 else {}
        self.pool = [Worker(clients, self.shared) for _ in range(workers)] if workers > 1 else []

    def __enter__(self) -> SimulationEngine:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.pool:
            worker.stop()

    def count(self, outcome: RoundResult) -> None:
        """Add no bytes: this engine sends messages only."""

    def ask(self, requests: Iterable[tuple[str, bytes] | None]) -> Iterator[tuple[str, bytes | Failure]]:
        """Send requests to clients and yield their replies as they arrive; at None, wait for a reply first."""
        if self.pool:
            yield from self._ask_workers(requests)
            return
        with one_thread():
            for client, request in filter(None, requests):
                failure = dropped(self.clients.rng, self.dropout, client, request)
                yield client, failure or self.clients.client(client, self.train).answer(request)

    def _ask_workers(self, requests: Iterable[tuple[str, bytes] | None]) -> Iterator[tuple[str, bytes | Failure]]:
        todo = iter(requests)
        retries: deque[tuple[str, bytes]] = deque()
        retried: set[tuple[str, bytes]] = set()
        busy: dict[Connection, Worker] = {}
        idle = list(self.pool)
        while True:
            while idle and (request := retries.popleft() if retries else next(todo, None)):
                if failure := dropped(self.clients.rng, self.dropout, *request):
                    yield request[0], failure
                    continue
                worker = idle.pop()
                worker.send(*request)
                busy[worker.pipe] = worker
            if not busy:
                return
            for pipe in wait(list(busy)):
                worker = busy.pop(pipe)  # type: ignore[call-overload]
                job, answer = worker.job, worker.receive()
                if isinstance(answer, Failure):  # the process died: replace it, and retry the request once
                    self.pool[self.pool.index(worker)] = worker = Worker(self.clients, self.shared)
                    if job not in retried:
                        retried.add(job)
                        retries.append(job)
                        idle.append(worker)
                        continue
                idle.append(worker)
                yield job[0], answer


def dropped(rng: Rng, probability: float, client: str, request: bytes) -> Failure | None:
    """Decide whether a simulated client drops out of a request, equally on any engine.

    Args:
        rng: Random stream of the run.
        probability: Probability of a dropout.
        client: Name of the client.
        request: The request.

    Returns:
        The failure, or None if the client answers.
    """
    if not probability:
        return None
    u = rng.child("dropout", client, digest(request)).numpy().random()
    return Failure("dropped out (simulated)") if u < probability else None
