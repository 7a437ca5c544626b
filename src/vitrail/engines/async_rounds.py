"""Rounds without a barrier, for methods whose clients do not depend on each other (`Method.num_async_rounds`).

`run_round` ends a round before the next begins, so the slowest client sets the pace of all. Here a client gets its
message of the next round as soon as its answer is in the server's state. A round is closed when all who were asked in
it have been heard, and rounds are closed in their order. At the end of the stretch all clients have done the same
rounds: there the run may look at the model and save it. The result has the bits of a barrier after every round.

Answers are kept in a journal until the next checkpoint. A server that is killed within a stretch begins it again and
finds them there; so a client is at most one round ahead of what the server knows, and for that round it has a reply
stored, as ever.

With secure aggregation, parts for other clients, or replies that are acknowledged, there is a barrier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitrail.engines.journal import Journal
from vitrail.engines.replies import Failure, FixedPointSum
from vitrail.engines.requests import RequestBuilder
from vitrail.engines.rounds import (
    Ask,
    Federation,
    RoundResult,
    Tell,
    accept_reply,
    collect_replies,
    finish_round,
    run_round,
)
from vitrail.methods.base import Method
from vitrail.utils.rng import Rng
from vitrail.wire.message import Kind

FULL = 2**30  # bytes of a journal after which no further round is opened before the next checkpoint

Before = Callable[[int, Sequence[str]], None]


def run_async_rounds(
    method: Method,
    fed: Federation,
    run: bytes,
    chosen: Callable[[int], Sequence[str]],
    until: int,
    ask: Ask,
    rng: Rng,
    journal: Journal,
    *,
    quorum: int = 1,
    tell: Tell = lambda _: None,
    before: Before = lambda *_: None,
) -> Iterator[tuple[RoundResult, Federation | None]]:
    """Play rounds until `until` of them are done, or fewer; one where the method needs a barrier.

    Yields each round as it ends, and with the last the federation after it: to be saved, then the journal cleared.
    """
    until = min(until, method.num_async_rounds)
    relays = any(d.how == "relay" for d in method.reply_spec().values())
    if until - fed.round < 2 or method.task.secagg_threshold or relays or method.needs_ack:
        clients = chosen(fed.round)
        fed, outcome = run_round(method, fed, run, clients, ask, rng, quorum=quorum, tell=tell, before=before)
        yield outcome, fed
        return
    free = _AsyncRounds(method, fed, run, chosen, until, rng, journal, quorum, tell, before)
    for client, answer in ask(free.requests()):
        free.answers(client, answer)
        yield from free.ended()
    yield from free.ended()


@dataclass
class _Round:
    """A round that is open."""

    who: Sequence[str]
    left: set[str]  # those of them who have not been heard yet
    outcome: RoundResult
    tally: FixedPointSum


class _AsyncRounds:
    """Where each client is, and the rounds that are open."""

    def __init__(
        self,
        method: Method,
        fed: Federation,
        run: bytes,
        chosen: Callable[[int], Sequence[str]],
        until: int,
        rng: Rng,
        journal: Journal,
        quorum: int,
        tell: Tell,
        before: Before,
    ) -> None:
        self.method, self.run, self.chosen, self.until, self.rng = method, run, chosen, until, rng
        self.journal, self.quorum, self.tell, self.before = journal, quorum, tell, before
        self.declared = method.reply_spec()
        self.server, self.known, self.counted = fed.server, set(fed.known), fed.counted
        self.rounds: dict[int, _Round] = {}
        self.closed = self.opened = fed.round  # the first round that is not
        self.begun: set[str] = set()  # clients that were asked in this stretch, or will be next
        self.ready: deque[tuple[str, int, bool]] = deque()  # whom to ask, in which round, whether in full
        self.asked: dict[str, tuple[int, bool, Path]] = {}  # who is at work, and where the answer will be kept

    def requests(self) -> Iterator[tuple[str, bytes] | None]:
        """What to ask next; what the journal has an answer to is not asked."""
        while True:
            if self.ready:
                client, t, full = self.ready.popleft()
                now = Federation(t, self.server, self.known, counted=self.counted)
                post = RequestBuilder(self.method, self.server, now, self.run, self.rounds[t].outcome)
                ((_, request),) = post.requests([client], full)
                place = self.journal.place(client, request)
                if (kept := self.journal.read(place)) is not None:
                    self._take(client, t, full, kept)
                    continue
                self.asked[client] = t, full, place
                yield client, request
            elif self.asked:
                yield None
            elif self.opened < self.until:
                self._open()
            else:
                return

    def answers(self, client: str, answer: bytes | Failure) -> None:
        """A client's answer has come: keep it before this client is asked again."""
        t, full, place = self.asked.pop(client)
        self.journal.write(place, answer)
        self._take(client, t, full, answer)

    def ended(self) -> Iterator[tuple[RoundResult, Federation | None]]:
        """Close rounds in which all have been heard, in their order."""
        while (one := self.rounds.get(self.closed)) is not None and not one.left:
            t, sums = self.closed, one.tally.sums(len(one.outcome.replied))
            fed = Federation(t, self.server, self.known, counted=self.counted)
            rng = self.rng.child("server", t)
            after, outcome = finish_round(self.method, fed, self.server, one.who, one.outcome, sums, rng, self.quorum)
            self.server, self.counted = after.server, after.counted
            self.closed += 1
            del self.rounds[t]
            if outcome.void:  # whoever runs this may want to stop
                self.until = self.opened
            yield outcome, after if self.closed == self.until else None

    def _open(self) -> None:
        """Open the next round, and ask those for whom it is the first of this stretch."""
        t = self.opened
        rng = self.rng.child("server", t)
        self.server, who = self.method.start_round(self.server, self.chosen(t), rng.child("open"))
        self.before(t, who)
        tally = FixedPointSum(self.declared, self.method.task.clients)
        self.rounds[t] = _Round(who, set(who), RoundResult(t, requested=len(who)), tally)
        self.opened += 1
        self.ready += [(client, t, False) for client in who if client not in self.begun]
        self.begun |= set(who)

    def _take(self, client: str, t: int, full: bool, answer: bytes | Failure) -> None:
        """Put an answer into the server's state, and let the client go on."""
        if self.journal.size > FULL:
            self.until = self.opened
        one = self.rounds[t]
        reply = collect_replies(answer, client, self.run, self.declared, self.server, one.outcome, full=full)
        if reply is Kind.NEED_FULL:
            self.ready.append((client, t, True))
            return
        if reply is not None:
            received = accept_reply(self.method, self.server, client, reply, one.tally, one.outcome)
            if received is not None:
                self.server = received
                self.known.add(client)
        one.left.remove(client)
        self.tell(one.outcome)
        self._go_on(client, t + 1)

    def _go_on(self, client: str, t: int) -> None:
        """Ask a client in the first round from t on that it was chosen for."""
        while t < self.until:
            if t == self.opened:
                self._open()
            if t in self.rounds and client in self.rounds[t].left:
                self.ready.append((client, t, False))
                return
            t += 1
