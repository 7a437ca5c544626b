"""The Flower engine: carries requests to nodes over a Grid."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

from vitrail.engines.federation import Ask, RoundResult
from vitrail.engines.flower.messages import pack, unpack
from vitrail.engines.flower.roster import Roster
from vitrail.engines.replies import Failure
from vitrail.engines.signing.client import TRAIN
from vitrail.methods.base import Method
from vitrail.utils.errors import printable, reason_of
from vitrail.wire.message import LARGEST

Dropout = Callable[[str, bytes], Failure | None]
_NOT_CONNECTED = "its node is not connected"
_GONE = (3, 4, 5)  # Flower's codes for a message or a node that no longer exists
_RETRY_DELAYS = (1.0, 5.0)  # seconds before a request is sent again after an error of Flower


@dataclass
class _Pending:
    """A request in progress."""

    request: bytes
    deadline: float
    node: int | None = None
    message: str = ""
    sent: int = 0  # number of times
    errors: int = 0
    not_before: float = 0.0  # when it may be sent again


@dataclass
class FlowerEngine:
    """Sends requests to nodes and yields their replies.

    Args:
        grid: Flower's connection to the nodes.
        roster: Nodes by client.
        method: The method; it determines the largest reply.
        max_pending: Largest number of requests in progress; None: no limit.
        purpose: Type of the Flower messages.
        dropout: Returns a failure if a simulated client does not answer a request.
    """

    grid: Grid
    roster: Roster
    method: Method
    max_pending: int | None = None
    purpose: str = TRAIN
    dropout: Dropout = lambda *_: None

    def __post_init__(self) -> None:
        signing = self.roster.signing
        self.ask: Ask = signing.ask(self.carry, self.purpose) if signing else self.carry
        self.max_reply = max_reply_bytes(self.method)
        self.repeated: Counter[str] = Counter()  # bytes of requests that were sent again, by client

    def count(self, outcome: RoundResult) -> None:
        """Add the bytes of signatures and repeated requests to the result of a round."""
        if self.roster.signing:
            self.roster.signing.count(outcome)
        outcome.down.update(self.repeated)
        self.repeated.clear()

    def carry(self, requests: Iterable[tuple[str, bytes] | None]) -> Iterator[tuple[str, bytes | Failure]]:
        """Send requests to clients and yield their replies as they arrive; at None, wait for a reply first.

        A client must reply within the run's timeout; later replies are ignored.
        """
        todo = iter(requests)
        pending: dict[str, _Pending] = {}
        while True:
            while (self.max_pending is None or len(pending) < self.max_pending) and (request := next(todo, None)):
                if failure := self.dropout(*request):
                    yield request[0], failure
                else:
                    pending[request[0]] = _Pending(request[1], time.monotonic() + self.roster.timeout)
            if not pending:
                return
            for client, answer in self._round_trip(pending):
                del pending[client]
                yield client, answer

    def _round_trip(self, pending: dict[str, _Pending]) -> list[tuple[str, bytes | Failure]]:
        """Send requests that are due, wait until something arrives, and return it."""
        start = time.monotonic()
        while pending:
            self.roster.update()
            for client, one in pending.items():
                self._send(client, one)
            if arrived := self._receive(pending):
                return arrived
            time.sleep(min(0.5, max(0.01, 0.05 * (time.monotonic() - start))))  # at most 5 % of the wait is lost
        return []

    def _send(self, client: str, one: _Pending) -> None:
        """Send a request to the client's node; again if that has another id now, or after an error of Flower."""
        node = self.roster.node(client)
        if node is None or node == one.node or time.monotonic() < one.not_before:
            return
        ttl = max(1.0, one.deadline - time.monotonic())
        message = Message(pack(self.roster.spec.text(), one.request), node, self.purpose, ttl=ttl)
        pushed = [m for m in self.grid.push_messages([message]) if m]
        if pushed:
            if one.sent and self.purpose == TRAIN:
                self.repeated[client] += len(one.request)
            one.node, one.message, one.sent = node, pushed[0], one.sent + 1

    def _receive(self, pending: dict[str, _Pending]) -> list[tuple[str, bytes | Failure]]:
        """Return replies that have arrived, and failures of clients that will not reply."""
        by_message = {one.message: client for client, one in pending.items() if one.message}
        arrived: list[tuple[str, bytes | Failure]] = []
        for reply in self.grid.pull_messages(list(by_message)) if by_message else ():
            client = by_message.get(reply.metadata.reply_to_message_id)
            if client is None:
                continue
            one = pending[client]
            if reply.has_error() and one.errors < len(_RETRY_DELAYS):
                one.node, one.message = None, ""
                one.not_before = time.monotonic() + _RETRY_DELAYS[one.errors]
                one.errors += 1
            else:
                arrived.append((client, self._read(reply)))
        replied = {client for client, _ in arrived}
        for client, one in pending.items():
            if client in replied:
                continue
            if one.node is None and self.roster.lost(client):
                arrived.append((client, Failure(printable(self.roster.refusal(client) or _NOT_CONNECTED))))
            elif time.monotonic() > one.deadline:
                arrived.append((client, Failure(f"did not reply within {self.roster.timeout:g} s")))
        return arrived

    def _read(self, reply: Message) -> bytes | Failure:
        if reply.has_error():
            if reply.error.code in _GONE:
                return Failure(_NOT_CONNECTED)
            return Failure(f"its node failed: {printable(reply.error.reason or 'no reason is given', 200)}")
        try:
            text, data = unpack(reply, self.max_reply)
        except Exception as e:
            return Failure(f"reply refused: {reason_of(e)}")
        return Failure(printable(text, 200)) if text else data


def max_reply_bytes(method: Method) -> int:
    """Return the largest size of a reply: all declared parts, headers, and letters of secure aggregation."""
    clients = method.task.clients
    parts = sum(d.most_bytes * (clients if d.how == "relay" else 1) for d in method.reply_spec().values())
    return min(2**20 + 2**10 * clients + parts, LARGEST)
