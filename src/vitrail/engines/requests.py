"""What the server sends: the method's parts and relays, as bytes that are counted where they are made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from vitrail.engines.replies import as_part
from vitrail.methods.base import LAST_COUNTED, Method
from vitrail.utils.state import State
from vitrail.wire.codecs import Array
from vitrail.wire.message import Header, Kind, Message, Part, encode, make_part

if TYPE_CHECKING:
    from vitrail.engines.rounds import Federation, RoundResult

Extra = Callable[[str], Sequence[Part]]


class RequestBuilder:
    """Makes requests one at a time; an array sent to many clients is encoded once."""

    def __init__(self, method: Method, server: State, fed: Federation, run: bytes, outcome: RoundResult) -> None:
        self.method, self.server, self.fed, self.run, self.outcome = method, server, fed, run, outcome
        self.memo: dict[tuple[str, str, int], tuple[Array, Part]] = {}

    def requests(
        self, clients: Iterable[str], full: bool, exchange: int = 0, extra: Extra = lambda _: ()
    ) -> Iterator[tuple[str, bytes]]:
        """What the method tells each client, and `extra` parts of the exchange's own."""
        last: tuple[Message, bytes] | None = None
        for client in clients:
            out = self.method.broadcast(self.server, client, full or client not in self.fed.known)
            parts = [self._part(name, codec, array) for name, (codec, array) in out.parts.items()]
            if self.method.needs_ack and client in self.fed.counted:
                parts.append(make_part(LAST_COUNTED, "int32", np.array([self.fed.counted[client]])))
            parts += [as_part(r) for r in self.fed.relays if r["to"] == client]
            header = Header(Kind.REQUEST, self.run, self.fed.round, "server", exchange, out.base)
            message = Message(header, (*parts, *extra(client)))
            if last is None or not _equal(last[0], message):
                last = message, encode(message)
            self.outcome.down[client] = self.outcome.down.get(client, 0) + len(last[1])
            self.outcome.floats_down += sum(4 * out.numbers.get(p.name, math.prod(p.shape)) for p in parts)
            yield client, last[1]

    def _part(self, name: str, codec: str, array: Array) -> Part:
        if array.size <= 16:  # not worth remembering
            return make_part(name, codec, array)
        key = (name, codec, id(array))
        if key not in self.memo:
            self.memo[key] = array, make_part(name, codec, array)  # holding the array keeps its id its own
        return self.memo[key][1]


def _equal(a: Message, b: Message) -> bool:
    """Whether two messages have the same bytes, without comparing large payloads that are the same object."""
    return a.header == b.header and len(a.parts) == len(b.parts) and all(
        x is y or (len(x.payload) <= 128 and x == y) for x, y in zip(a.parts, b.parts, strict=True)
    )  # fmt: skip
