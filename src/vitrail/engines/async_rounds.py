"""Rounds without a barrier, for methods whose clients do not depend on each other (`Method.num_async_rounds`).

A client gets its next request as soon as its reply is in the server's state. Rounds are finished in order; the result
has the bits of a barrier after every round. Replies are stored in a journal until the next checkpoint: a server that
is killed reads them there, so a client is never more than one round ahead of the server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vitrail.engines.federation import Ask, Federation, OnProgress, OnStart, RoundResult
from vitrail.engines.journal import Journal
from vitrail.engines.replies import Failure
from vitrail.engines.requests import RequestBuilder
from vitrail.engines.rounds import RoundInProgress, run_round
from vitrail.methods.base import Method
from vitrail.utils.rng import Rng
from vitrail.wire.message import Kind

MAX_JOURNAL = 2**30  # bytes of a journal after which no further round starts before the next checkpoint


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
    relays = any(d.how == "relay" for d in method.reply_spec().values())
    dependent = method.task.secagg_threshold or relays or method.needs_ack
    if not dependent and min(until, method.num_async_rounds) - fed.round >= 2:
        yield from AsyncRounds(method, fed, run, select, until, send, rng, journal, quorum, on_progress, on_start)
        return
    after, result = run_round(
        method, fed, run, select(fed.round), send, rng, quorum=quorum, on_progress=on_progress, on_start=on_start
    )
    yield result, after


@dataclass
class AsyncRounds:
    """Asynchronous rounds of a method that allows them: iterate to run them.

    Arguments and results are those of `run_rounds`. Rounds stop before `until` if the journal is full, a round
    is discarded, or the method's asynchronous rounds end.
    """

    method: Method
    fed: Federation  # after the last finished round, with the replies of later ones in the server's state
    run: bytes
    select: Callable[[int], Sequence[str]]
    until: int
    send: Ask
    rng: Rng
    journal: Journal
    quorum: int = 1
    on_progress: OnProgress = lambda _: None
    on_start: OnStart = lambda *_: None

    def __post_init__(self) -> None:
        self.until = min(self.until, self.method.num_async_rounds)
        self.fed = replace(self.fed, known=set(self.fed.known))
        self.next_start = self.fed.round
        self.rounds: dict[int, RoundInProgress] = {}
        self.waiting: dict[int, set[str]] = {}  # by round: participants that have not replied
        self.started: set[str] = set()  # clients that have a request since the last checkpoint, or in `ready`
        self.ready: deque[tuple[str, int, bool]] = deque()  # next requests: client, round, whether full
        self.pending: dict[str, tuple[int, bool, Path]] = {}  # requests in progress, and the journal file of the reply

    def __iter__(self) -> Iterator[tuple[RoundResult, Federation | None]]:
        for client, answer in self.send(self.requests()):
            self.receive(client, answer)
            yield from self.finished()
        yield from self.finished()

    def requests(self) -> Iterator[tuple[str, bytes] | None]:
        """Yield the next request, or None to wait for a reply; requests with a reply in the journal are skipped."""
        while True:
            if self.ready:
                client, t, full = self.ready.popleft()
                builder = RequestBuilder(self.method, replace(self.fed, round=t), self.run, self.rounds[t].result)
                ((_, request),) = builder.requests([client], full)
                path = self.journal.path(client, request)
                if (stored := self.journal.read(path)) is not None:
                    self._accept(client, t, full, stored)
                    continue
                self.pending[client] = t, full, path
                yield client, request
            elif self.pending:
                yield None
            elif self.next_start < self.until:
                self._start_round()
            else:
                return

    def receive(self, client: str, answer: bytes | Failure) -> None:
        """Store a client's reply in the journal, then use it: the client's next request depends on it."""
        t, full, path = self.pending.pop(client)
        self.journal.write(path, answer)
        self._accept(client, t, full, answer)

    def finished(self) -> Iterator[tuple[RoundResult, Federation | None]]:
        """Finish rounds that have all replies, in order."""
        while (t := self.fed.round) in self.rounds and not self.waiting[t]:
            rng = self.rng.child("server", t)
            self.fed, result = self.rounds.pop(t).finish(self.fed, rng, self.quorum)
            if result.void:  # the caller may want to stop
                self.until = self.next_start
            yield result, self.fed if self.fed.round == self.until else None

    def _start_round(self) -> None:
        """Start the next round, and queue clients that have no request yet."""
        t = self.next_start
        rng = self.rng.child("server", t)
        self.fed.server, participants = self.method.start_round(self.fed.server, self.select(t), rng.child("open"))
        self.on_start(t, participants)
        self.rounds[t], self.waiting[t] = RoundInProgress(self.method, self.run, t, participants), set(participants)
        self.next_start += 1
        self.ready += [(client, t, False) for client in participants if client not in self.started]
        self.started |= set(participants)

    def _accept(self, client: str, t: int, full: bool, answer: bytes | Failure) -> None:
        """Put a reply into the server's state and queue the client's next request."""
        if self.journal.size > MAX_JOURNAL:
            self.until = self.next_start
        current = self.rounds[t]
        reply = current.collect(client, answer, self.fed.server, full=full)
        if reply is Kind.NEED_FULL:
            self.ready.append((client, t, True))
            return
        if reply is not None and (received := current.accept(client, reply, self.fed.server)) is not None:
            self.fed.server = received
            self.fed.known.add(client)
        self.waiting[t].remove(client)
        self.on_progress(current.result)
        self._queue_next(client, t + 1)

    def _queue_next(self, client: str, t: int) -> None:
        """Queue a client's request of the first round from t on in which it takes part."""
        while t < self.until:
            if t == self.next_start:
                self._start_round()
            if client in self.waiting.get(t, ()):
                self.ready.append((client, t, False))
                return
            t += 1
