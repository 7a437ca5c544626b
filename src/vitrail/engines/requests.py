"""Requests of the server: the method's parts and relays as bytes, counted where they are encoded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from vitrail.engines.federation import Federation, RoundResult, as_part
from vitrail.methods.base import Method
from vitrail.methods.messages import LAST_COUNTED
from vitrail.wire.codecs import Array
from vitrail.wire.message import Header, Kind, Message, Part, encode, make_part

ExtraParts = Callable[[str], Sequence[Part]]


class RequestBuilder:
    """Encodes requests one at a time; an array that many clients get is encoded once."""

    def __init__(self, method: Method, fed: Federation, run: bytes, result: RoundResult) -> None:
        self.method, self.fed, self.run, self.result = method, fed, run, result
        self.encoded: dict[tuple[str, str, int], tuple[Array, Part]] = {}

    def requests(
        self, clients: Iterable[str], full: bool, exchange: int = 0, extra: ExtraParts = lambda _: ()
    ) -> Iterator[tuple[str, bytes]]:
        """Encode the request to each client.

        Args:
            clients: Recipients.
            full: Whether to send the full state also to clients that have replied before.
            exchange: Number of the exchange within the round.
            extra: Further parts by client, such as those of secure aggregation.

        Yields:
            Pairs of client and request.
        """
        last: tuple[Message, bytes] | None = None
        for client in clients:
            out = self.method.broadcast(self.fed.server, client, full or client not in self.fed.known)
            parts = [self._part(name, codec, array) for name, (codec, array) in out.parts.items()]
            if self.method.needs_ack and client in self.fed.counted:
                parts.append(make_part(LAST_COUNTED, "int32", np.array([self.fed.counted[client]])))
            parts += [as_part(r) for r in self.fed.relays if r["to"] == client]
            header = Header(Kind.REQUEST, self.run, self.fed.round, "server", exchange, out.base)
            message = Message(header, (*parts, *extra(client)))
            if last is None or not _equal(last[0], message):
                last = message, encode(message)
            self.result.down[client] += len(last[1])
            self.result.floats_down += sum(4 * out.numbers.get(p.name, math.prod(p.shape)) for p in parts)
            yield client, last[1]

    def _part(self, name: str, codec: str, array: Array) -> Part:
        if array.size <= 16:  # encoding is as fast as a lookup
            return make_part(name, codec, array)
        key = (name, codec, id(array))
        if key not in self.encoded:
            self.encoded[key] = array, make_part(name, codec, array)  # the reference keeps the id unique
        return self.encoded[key][1]


def _equal(a: Message, b: Message) -> bool:
    """Whether two messages have the same bytes, without comparing large payloads that are the same object."""
    return a.header == b.header and len(a.parts) == len(b.parts) and all(
        x is y or (len(x.payload) <= 128 and x == y) for x, y in zip(a.parts, b.parts, strict=True)
    )  # fmt: skip
