"""The embedded engine: all clients on this machine, one after another or over worker processes.

Workers have one torch thread each and share the pictures' memory; a client's state lives in its file, so memory does
not grow with the number of clients.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp
from numpy.typing import NDArray

from vitrail.data.dataset import Images
from vitrail.engines.client import Client
from vitrail.engines.replies import Failure
from vitrail.engines.rounds import RoundResult
from vitrail.methods.base import Method
from vitrail.privacy.budget import Budget
from vitrail.utils.determinism import one_thread
from vitrail.utils.rng import Rng
from vitrail.wire.message import digest


@dataclass(frozen=True)
class SimulatedClients:
    """All clients of a simulation: who holds which pictures, and where each keeps its state."""

    method: Method
    run: bytes
    rng: Rng
    holds: Mapping[str, NDArray[np.int64]]
    folder: Path
    budget: Budget | None = None  # of each of them, its name before theirs

    def client(self, name: str, train: Images) -> Client:
        """One of them."""
        budget = self.budget and replace(self.budget, name=f"{self.budget.name}/{name}")
        return Client(name, self.method, self.run, self.rng, lambda: train.take(self.holds[name]), self.folder, budget)


class SimulationEngine:
    """An engine to be used in a `with` block: `ask` streams answers.

    `dropout` is the chance that a client does not answer a request: it is decided by the seed, the client and the
    request, so it is the same for any number of workers.
    """

    def __init__(self, crew: SimulatedClients, train: Images, workers: int = 1, dropout: float = 0.0) -> None:
        self.crew, self.train, self.dropout = crew, train, dropout
        self.shared = _share(train) if workers > 1 else {}
        self.pool = [_Worker(crew, self.shared) for _ in range(workers)] if workers > 1 else []

    def __enter__(self) -> SimulationEngine:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.pool:
            worker.stop()

    def count(self, outcome: RoundResult) -> None:
        """Nothing travels beside messages."""

    def ask(self, requests: Iterable[tuple[str, bytes] | None]) -> Iterator[tuple[str, bytes | Failure]]:
        """Carry requests to clients and yield their answers as they come; at None, wait for one of them."""
        if not self.pool:
            with one_thread():
                for job in filter(None, requests):
                    yield job[0], self._drops(*job) or self.crew.client(job[0], self.train).answer(job[1])
            return
        todo = iter(requests)
        retries: deque[tuple[str, bytes]] = deque()
        tried: set[tuple[str, bytes]] = set()
        busy: dict[Connection, _Worker] = {}
        idle = list(self.pool)
        exhausted = False
        while busy or retries or not exhausted:
            while idle and (retries or not exhausted):
                try:
                    request = retries.popleft() if retries else next(todo)
                except StopIteration:
                    exhausted = True
                    break
                if request is None:
                    break
                if failure := self._drops(*request):
                    yield request[0], failure
                    continue
                worker = idle.pop()
                worker.give(*request)
                busy[worker.pipe] = worker
            for pipe in wait(list(busy)) if busy else ():
                worker = busy.pop(pipe)  # type: ignore[call-overload]
                job, answer = worker.job, worker.collect()
                if isinstance(answer, Failure):  # the process died: replace it, and try the client once more
                    self.pool[self.pool.index(worker)] = worker = _Worker(self.crew, self.shared)
                    if job not in tried:
                        tried.add(job)
                        retries.append(job)
                        idle.append(worker)
                        continue
                idle.append(worker)
                yield job[0], answer

    def _drops(self, client: str, request: bytes) -> Failure | None:
        return dropped(self.crew.rng, self.dropout, client, request)


def dropped(rng: Rng, chance: float, client: str, request: bytes) -> Failure | None:
    """Whether a simulated client does not answer a request: the same on any engine."""
    if not chance:
        return None
    u = rng.child("dropout", client, digest(request)).numpy().random()
    return Failure("dropped out (simulated)") if u < chance else None


class _Worker:
    """A process that answers for one client at a time."""

    def __init__(self, crew: SimulatedClients, shared: dict[str, Any]) -> None:
        context = _context()
        near, far = context.Pipe()
        self.pipe: Connection = near
        self.process = context.Process(target=_work, args=(far, crew, shared), daemon=True)
        with _no_main():
            self.process.start()
        far.close()
        self.job: tuple[str, bytes] = ("", b"")

    def give(self, client: str, request: bytes) -> None:
        """Hand over a request."""
        self.job = (client, request)
        with contextlib.suppress(OSError):  # a dead process shows when its answer is collected
            self.pipe.send_bytes(client.encode())
            self.pipe.send_bytes(request)

    def collect(self) -> bytes | Failure:
        """Take the answer, or learn that the process is gone."""
        try:
            return self.pipe.recv_bytes()
        except (EOFError, OSError):
            self.process.join()
            return Failure(f"its worker process ended with code {self.process.exitcode} (out of memory?)")

    def stop(self) -> None:
        """End the process."""
        self.pipe.close()
        self.process.terminate()
        self.process.join()


def _context() -> Any:
    """Processes that are forked from one which has torch and nothing else: it is imported once for all of them."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["vitrail.engines.simulation", "torch._dynamo"])  # all optimisers import the second
    return context


@contextlib.contextmanager
def _no_main() -> Iterator[None]:
    """Hide the caller's script: a spawned process would run it again, and train again where it has no guard."""
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {k: vars(main).pop(k) for k in ("__file__", "__spec__") if k in vars(main)}
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(hidden)


def _work(pipe: Connection, crew: SimulatedClients, shared: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    train = Images(**{k: _open(v) for k, v in shared.items()})
    with one_thread(), contextlib.suppress(EOFError, OSError):
        while True:
            client = pipe.recv_bytes().decode()
            pipe.send_bytes(crew.client(client, train).answer(pipe.recv_bytes()))


def _share(train: Images) -> dict[str, Any]:
    """Pictures as something other processes can open without a copy; the kernel frees it with the last of them."""

    def share(a: Any) -> Any:
        if isinstance(a, np.memmap) and a.filename is not None:
            return str(a.filename), str(a.dtype), a.shape, a.offset
        return None if a is None else torch.from_numpy(np.ascontiguousarray(a)).share_memory_()

    return {f.name: share(getattr(train, f.name)) for f in fields(train)}


def _open(a: Any) -> Any:
    if isinstance(a, tuple):
        name, dtype, shape, offset = a
        return np.memmap(name, dtype, "r", offset, shape)
    return None if a is None else a.numpy()
