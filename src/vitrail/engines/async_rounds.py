"""Rounds without a barrier, for methods whose clients do not depend on each other (`Method.num_async_rounds`).

A client gets its next request as soon as its reply is in the server's state, so a slow client delays no other. Rounds
are finished in order, each when all its replies are in; the result has the bits of a barrier after every round.
Replies are stored in a journal until the next checkpoint: a server that is killed repeats the rounds since then and
reads them there, so a client is never more than one round ahead of the server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitrail.engines.federation import Ask, Federation, OnProgress, OnStart, RoundResult
from vitrail.engines.journal import Journal
from vitrail.engines.replies import Failure
from vitrail.engines.requests import RequestBuilder
from vitrail.engines.rounds import accept_reply, collect_reply, finish_round
from vitrail.engines.sums import FixedPointSum
from vitrail.methods.base import Method
from vitrail.utils.rng import Rng
from vitrail.wire.message import Kind

MAX_JOURNAL = 2**30  # bytes of a journal after which no further round starts before the next checkpoint


def run_async_rounds(
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
    """Run asynchronous rounds of a method that allows them; arguments and results are those of `server.run_rounds`.

    Rounds stop before `until` if the journal is full, a round is discarded, or the method's asynchronous rounds end.
    """
    rounds = _AsyncRounds(
        method, fed, run, select, min(until, method.num_async_rounds), rng, journal, quorum, on_progress, on_start
    )
    for client, answer in send(rounds.requests()):
        rounds.receive(client, answer)
        yield from rounds.finished()
    yield from rounds.finished()


@dataclass
class _Round:
    """A round that has started and is not finished."""

    participants: Sequence[str]
    waiting: set[str]  # participants that have not replied
    result: RoundResult
    total: FixedPointSum


class _AsyncRounds:
    """The position of each client, and the rounds in progress."""

    def __init__(
        self,
        method: Method,
        fed: Federation,
        run: bytes,
        select: Callable[[int], Sequence[str]],
        until: int,
        rng: Rng,
        journal: Journal,
        quorum: int,
        on_progress: OnProgress,
        on_start: OnStart,
    ) -> None:
        self.method, self.run, self.select, self.until, self.rng = method, run, select, until, rng
        self.journal, self.quorum, self.on_progress, self.on_start = journal, quorum, on_progress, on_start
        self.declared = method.reply_spec()
        self.server, self.known, self.counted = fed.server, set(fed.known), fed.counted
        self.rounds: dict[int, _Round] = {}
        self.next_finish = self.next_start = fed.round
        self.started: set[str] = set()  # clients that have a request since the last checkpoint, or in `ready`
        self.ready: deque[tuple[str, int, bool]] = deque()  # next requests: client, round, whether full
        self.pending: dict[str, tuple[int, bool, Path]] = {}  # requests in progress, and the journal file of the reply

    def requests(self) -> Iterator[tuple[str, bytes] | None]:
        """Yield the next request, or None to wait for a reply; requests with a reply in the journal are skipped."""
        while True:
            if self.ready:
                client, t, full = self.ready.popleft()
                now = Federation(t, self.server, self.known, counted=self.counted)
                builder = RequestBuilder(self.method, self.server, now, self.run, self.rounds[t].result)
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
        while (current := self.rounds.get(self.next_finish)) is not None and not current.waiting:
            t, sums = self.next_finish, current.total.sums(len(current.result.replied))
            fed = Federation(t, self.server, self.known, counted=self.counted)
            after, result = finish_round(
                self.method, fed, self.server, current.participants, current.result, sums,
                self.rng.child("server", t), self.quorum,
            )  # fmt: skip
            self.server, self.counted = after.server, after.counted
            self.next_finish += 1
            del self.rounds[t]
            if result.void:  # the caller may want to stop
                self.until = self.next_start
            yield result, after if self.next_finish == self.until else None

    def _start_round(self) -> None:
        """Start the next round, and queue clients that have no request yet."""
        t = self.next_start
        rng = self.rng.child("server", t)
        self.server, participants = self.method.start_round(self.server, self.select(t), rng.child("open"))
        self.on_start(t, participants)
        total = FixedPointSum(self.declared, self.method.task.clients)
        self.rounds[t] = _Round(participants, set(participants), RoundResult(t, requested=len(participants)), total)
        self.next_start += 1
        self.ready += [(client, t, False) for client in participants if client not in self.started]
        self.started |= set(participants)

    def _accept(self, client: str, t: int, full: bool, answer: bytes | Failure) -> None:
        """Put a reply into the server's state and queue the client's next request."""
        if self.journal.size > MAX_JOURNAL:
            self.until = self.next_start
        current = self.rounds[t]
        reply = collect_reply(answer, client, self.run, self.declared, self.server, current.result, full=full)
        if reply is Kind.NEED_FULL:
            self.ready.append((client, t, True))
            return
        if reply is not None:
            received = accept_reply(self.method, self.server, client, reply, current.total, current.result)
            if received is not None:
                self.server = received
                self.known.add(client)
        current.waiting.remove(client)
        self.on_progress(current.result)
        self._queue_next(client, t + 1)

    def _queue_next(self, client: str, t: int) -> None:
        """Queue a client's request of the first round from t on in which it takes part."""
        while t < self.until:
            if t == self.next_start:
                self._start_round()
            if t in self.rounds and client in self.rounds[t].waiting:
                self.ready.append((client, t, False))
                return
            t += 1
