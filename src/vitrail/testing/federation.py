"""A small federation in one process that records, reorders or changes messages; for tests of methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data import load
from vitrail.data.dataset import Dataset, Images
from vitrail.engines.async_rounds import run_rounds
from vitrail.engines.journal import Journal
from vitrail.engines.replies import Failure
from vitrail.engines.rounds import Federation, RoundResult
from vitrail.engines.simulation import SimulatedClients, SimulationEngine
from vitrail.methods.base import Method
from vitrail.utils.rng import Rng
from vitrail.utils.state import pack
from vitrail.wire.message import decode

RUN = b"a run for tests!"
SEED = 5
Spoil = Callable[[int, str, bytes], bytes | Failure]


@cache
def digits() -> Dataset:
    """Return handwritten digits of 8x8 pixels."""
    return load("digits", size=8)


def shares(clients: int = 3, each: int = 24) -> dict[str, NDArray[np.int64]]:
    """Return which client has which of the digits."""
    return {f"client-{k}": np.arange(k * each, (k + 1) * each) for k in range(clients)}


@dataclass
class Traffic:
    """Every message of a federation, in the order it was carried: (client, bytes)."""

    requests: list[tuple[str, bytes]] = field(default_factory=list)
    replies: list[tuple[str, bytes]] = field(default_factory=list)


def federate(
    method: Method,
    folder: Path,
    *,
    indices: dict[str, NDArray[np.int64]] | None = None,
    train: Images | None = None,
    rounds: int | None = None,
    workers: int = 1,
    reverse: bool = False,
    dropout: float = 0.0,
    quorum: int = 1,
    spoil: Spoil | None = None,
    fed: Federation | None = None,
    ahead: int = 1,
) -> tuple[Federation, list[RoundResult], Traffic]:
    """Run rounds of a method.

    Args:
        method: The method, with its task.
        folder: Where clients store their private state.
        indices: Which client has which images.
        train: All images; default: digits.
        rounds: Number of rounds; default: those of the task.
        workers: Number of processes.
        reverse: Whether clients are processed in reverse order.
        dropout: Probability that a client does not reply.
        quorum: Replies that a round needs.
        spoil: Changes replies: called with round, client and message.
        fed: Where to continue; default: the method's initial state.
        ahead: Run this many rounds at a time where the method's clients do not wait for each other.

    Returns:
        The server after the last round, the result of each round, and all messages.
    """
    indices = indices or shares()
    train = train or digits().train
    rng = Rng((SEED,))
    traffic = Traffic()
    fed = fed or Federation(0, method.server_init(rng.child("server", "init"), train.take(np.arange(3))))
    outcomes: list[RoundResult] = []
    clients = SimulatedClients(method, RUN, rng, indices, folder)
    with SimulationEngine(clients, train, workers, dropout) as engine:

        def recorded(requests: Iterable[tuple[str, bytes] | None]) -> Iterator[tuple[str, bytes] | None]:
            for request in requests:
                traffic.requests += [request] if request else []
                yield request

        def ask(requests: Iterable[tuple[str, bytes] | None]) -> Iterator[tuple[str, bytes | Failure]]:
            sent = recorded(requests)
            for client, answer in engine.ask(reversed(list(sent)) if reverse else sent):
                if isinstance(answer, bytes):
                    traffic.replies.append((client, answer))
                    if spoil:
                        answer = spoil(decode(answer).header.round, client, answer)  # noqa: PLW2901
                yield client, answer

        end = fed.round + (method.task.rounds if rounds is None else rounds)
        while fed.round < end:
            journal, until = Journal(folder / "answers"), min(end, fed.round + ahead)
            for outcome, after in run_rounds(
                method, fed, RUN, lambda _: sorted(indices), until, ask, rng, journal, quorum=quorum
            ):
                outcomes.append(outcome)
                fed = after or fed
            journal.clear()
    return fed, outcomes, traffic


def same(a: Any, b: Any) -> bool:
    """Return whether two trees of state are equal bit by bit."""
    (tensors_a, shape_a), (tensors_b, shape_b) = pack(a), pack(b)
    return shape_a == shape_b and all(
        (x.dtype, x.shape) == (y.dtype, y.shape) and x.numpy().tobytes() == y.numpy().tobytes()
        for x, y in zip(tensors_a.values(), tensors_b.values(), strict=True)
    )
