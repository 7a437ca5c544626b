"""The server's round loop: rounds with a barrier, or asynchronous ones where the method allows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from vitrail.engines.async_rounds import run_async_rounds
from vitrail.engines.federation import Ask, Federation, OnProgress, OnStart, RoundResult
from vitrail.engines.journal import Journal
from vitrail.engines.rounds import run_round
from vitrail.methods.base import Method
from vitrail.utils.rng import Rng


def run_rounds(
    method: Method,
    fed: Federation,
    run: bytes,
    select: Callable[[int], Sequence[str]],
    until: int,
    send: Ask,
    rng: Rng,
    journal: Journal,
    *,
    quorum: int = 1,
    on_progress: OnProgress = lambda _: None,
    on_start: OnStart = lambda *_: None,
) -> Iterator[tuple[RoundResult, Federation | None]]:
    """Run rounds up to the next point at which the federation can be saved.

    This is one round, or several where the method allows asynchronous rounds (`Method.num_async_rounds`). The result
    is the same to the bit.

    Args:
        method: The method.
        fed: The federation before the first of these rounds.
        run: Id of the run.
        select: Returns the clients selected for a round.
        until: Number of rounds after which to stop at the latest, counted from the start of the run.
        send: The engine that carries messages.
        rng: Random stream of the run.
        journal: Replies since the last checkpoint; the caller clears it after saving the federation.
        quorum: Smallest number of replies for which a round is not discarded.
        on_progress: Called after each reply.
        on_start: Called before the requests of each round with its number and participants.

    Yields:
        The result of each round; with the last of them the federation after it, else None.
    """
    if _allows_async(method) and min(until, method.num_async_rounds) - fed.round >= 2:
        yield from run_async_rounds(
            method, fed, run, select, until, send, rng, journal,
            quorum=quorum, on_progress=on_progress, on_start=on_start,
        )  # fmt: skip
        return
    clients = select(fed.round)
    after, result = run_round(
        method, fed, run, clients, send, rng, quorum=quorum, on_progress=on_progress, on_start=on_start
    )
    yield result, after


def _allows_async(method: Method) -> bool:
    """Whether clients depend neither on each other's replies nor on the end of a round."""
    relays = any(d.how == "relay" for d in method.reply_spec().values())
    return not (method.task.secagg_threshold or relays or method.needs_ack)
