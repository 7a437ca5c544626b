"""The Flower engine: `ask` over a Grid."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod

from flwr.app import Message
from flwr.serverapp import Grid

from vitrail.engines.flower.messages import TRAIN, packed, unpacked
from vitrail.engines.flower.roster import Roster
from vitrail.engines.replies import Failure
from vitrail.engines.rounds import Ask, RoundResult
from vitrail.methods.base import Method
from vitrail.utils.errors import printable, reason_of
from vitrail.wire.message import LARGEST

Drops = Callable[[str, bytes], Failure | None]
_NOT_THERE = "its node is not connected"
_GONE = (3, 4, 5)  # Flower's codes for a message or a node that is no longer there
_RESTS = (1.0, 5.0)  # seconds before a client is asked once more where Flower failed; it says what it would have said


@dataclass
class _Asked:
    """A request under way."""

    request: bytes
    until: float
    node: int | None = None
    message: str = ""
    times: int = 0  # that it was sent
    accidents: int = 0
    rests: float = 0.0  # until when it is not sent again


class FlowerEngine:
    """Carries requests to nodes and streams their answers; `most` is how many are under way at once."""

    def __init__(
        self,
        grid: Grid,
        roster: Roster,
        method: Method,
        *,
        most: int | None = None,
        kind: str = TRAIN,
        drops: Drops = lambda *_: None,
    ) -> None:
        self.grid, self.roster, self.most, self.kind, self.drops = grid, roster, most, kind, drops
        self.ask: Ask = roster.proof.ask(self.carry, kind) if roster.proof else self.carry
        self.largest = largest_reply(method)
        self.repeated: Counter[str] = Counter()  # bytes of requests that were sent again, by client

    def count(self, outcome: RoundResult) -> None:
        """What travelled beside a round's messages."""
        if self.roster.proof:
            self.roster.proof.count(outcome)
        for client, size in self.repeated.items():
            outcome.down[client] = outcome.down.get(client, 0) + size
        self.repeated.clear()

    def carry(self, requests: Iterable[tuple[str, bytes] | None]) -> Iterator[tuple[str, bytes | Failure]]:
        """Carry requests to clients and yield their answers as they come; at None, wait for one of them.

        A client has the run's time-out to answer; what it says later is to a message that nobody asks for any more.
        """
        todo, more = iter(requests), True
        waiting: dict[str, _Asked] = {}
        while more or waiting:
            while more and (self.most is None or len(waiting) < self.most):
                try:
                    request = next(todo)
                except StopIteration:
                    more = False
                    break
                if request is None:
                    break
                if failure := self.drops(*request):
                    yield request[0], failure
                    continue
                waiting[request[0]] = _Asked(request[1], time.monotonic() + self.roster.timeout)
            for client, answer in self._round_trip(waiting):
                del waiting[client]
                yield client, answer

    def _round_trip(self, waiting: dict[str, _Asked]) -> list[tuple[str, bytes | Failure]]:
        """Send what can be sent, wait until something comes, and return it."""
        began = time.monotonic()
        while waiting:
            self.roster.look()
            for client, asked in waiting.items():
                self._send(client, asked)
            came = self._came(waiting)
            if came:
                return came
            time.sleep(min(0.5, max(0.01, 0.05 * (time.monotonic() - began))))  # a twentieth of the wait is lost
        return []

    def _send(self, client: str, asked: _Asked) -> None:
        """To the client's node; again where that has come back as another, or where Flower failed."""
        node = self.roster.node(client)
        if node is None or node == asked.node or time.monotonic() < asked.rests:
            return
        left = max(1.0, asked.until - time.monotonic())
        message = Message(packed(self.roster.terms.text(), asked.request), node, self.kind, ttl=left)
        pushed = [m for m in self.grid.push_messages([message]) if m]
        if pushed:
            if asked.times and self.kind == TRAIN:
                self.repeated[client] += len(asked.request)
            asked.node, asked.message, asked.times = node, pushed[0], asked.times + 1

    def _came(self, waiting: dict[str, _Asked]) -> list[tuple[str, bytes | Failure]]:
        by_message = {asked.message: client for client, asked in waiting.items() if asked.message}
        came: list[tuple[str, bytes | Failure]] = []
        for reply in self.grid.pull_messages(list(by_message)) if by_message else ():
            client = by_message.get(reply.metadata.reply_to_message_id)
            if client is None:
                continue
            asked = waiting[client]
            if reply.has_error() and asked.accidents < len(_RESTS):
                asked.node, asked.message = None, ""
                asked.rests = time.monotonic() + _RESTS[asked.accidents]
                asked.accidents += 1
            else:
                came.append((client, self._read(reply)))
        heard = {client for client, _ in came}
        for client, asked in waiting.items():
            if client in heard:
                continue
            if asked.node is None and self.roster.lost(client):
                came.append((client, Failure(printable(self.roster.refusal(client) or _NOT_THERE))))
            elif time.monotonic() > asked.until:
                came.append((client, Failure(f"did not answer within {self.roster.timeout:g} s")))
        return came

    def _read(self, reply: Message) -> bytes | Failure:
        if reply.has_error():
            if reply.error.code in _GONE:
                return Failure(_NOT_THERE)
            return Failure(f"its node failed: {printable(reply.error.reason or 'it gives no reason', 200)}")
        try:
            words, data = unpacked(reply, self.largest)
        except Exception as e:
            return Failure(f"reply refused: {reason_of(e)}")
        return Failure(printable(words, 200)) if words else data


def largest_reply(method: Method) -> int:
    """How many bytes a reply may have: what was declared, and room for headers and for secure aggregation's letters."""
    declared = method.reply_spec()
    clients = method.task.clients
    total = 2**20 + 2**10 * clients
    for d in declared.values():
        total += prod((d.most_bytes, clients if d.how == "relay" else 1))
    return min(total, LARGEST)
