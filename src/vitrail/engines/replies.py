"""Replies of clients: each part is checked against the method's `reply_spec` before it is sent or used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vitrail.methods.base import PartSpec, Reply
from vitrail.utils.errors import Malformed, VitrailError, printable, reason_of
from vitrail.utils.state import State
from vitrail.wire.codecs import Array
from vitrail.wire.message import LONGEST_REASON, Kind, Part, decode, make_part


@dataclass(frozen=True)
class Failure:
    """The reason why a client gave no usable reply."""

    reason: str


@dataclass(frozen=True)
class CheckedPart:
    """A part of a reply that matches its specification, and its decoded array."""

    part: Part
    array: Array


CheckedReply = tuple[CheckedPart, ...]
_DECODE_LATER: Array = np.empty(0)  # placeholder for an array that is decoded again when it is needed


def encode_parts(reply: Reply, declared: Mapping[str, PartSpec]) -> tuple[Part, ...]:
    """Encode a method's reply.

    Args:
        reply: What `Method.client_round` returned.
        declared: The method's `reply_spec`.

    Returns:
        The parts. Values of `metric.*` are clipped to their range, because a diverging loss is no reason to exclude a
        client.

    Raises:
        VitrailError: A part is not declared, or cannot be encoded as declared.
    """
    named = [(name, "", a) for name, a in reply.parts.items()]
    named += [(name, to, a) for (to, name), a in reply.relay.items()]
    parts = []
    for name, to, array in named:
        if name not in declared or (declared[name].how == "relay") != bool(to):
            raise VitrailError(f"part {name!r} is not declared by the method, so it does not leave the client")
        if name.startswith("metric."):
            limit = declared[name].limit
            array = np.nan_to_num(np.asarray(array), nan=limit).clip(-limit, limit)  # noqa: PLW2901
        try:
            parts.append(make_part(name, declared[name].codec, np.asarray(array), to))
        except VitrailError as e:
            raise VitrailError(f"its part {name!r} cannot be sent: {e}") from e
    return tuple(parts)


def reason_part(reason: str) -> Part:
    """Encode the reason of a failure."""
    return make_part("reason", "bytes", np.frombuffer(reason.encode()[:LONGEST_REASON], np.uint8))


def read_reply(
    answer: bytes | Failure,
    run: bytes,
    t: int,
    client: str,
    declared: Mapping[str, PartSpec],
    server: State,
    exchange: int = 0,
    *,
    full: bool = True,
) -> CheckedReply | Literal[Kind.NEED_FULL] | Failure:
    """Decode and check a reply.

    Args:
        answer: What the engine returned for this client.
        run: Id of the run.
        t: Number of the round.
        client: Name of the client that was sent the request.
        declared: The parts that the reply must have.
        server: State of the server, for parts that are coded relative to it.
        exchange: Number of the exchange within the round.
        full: Whether the request had the full state, so that the client may not request it again.

    Returns:
        The checked parts; NEED_FULL if the client must be sent the full state; or the reason why it is excluded.
    """
    if isinstance(answer, Failure):
        return answer
    try:
        message = decode(answer)
        h = message.header
        if (h.run, h.sender) != (run, client):
            raise Malformed(f"claims to be from {h.sender!r}" if h.run == run else "belongs to another run")
        if h.kind is Kind.FAILED:
            return Failure(_reason(message.parts))
        if (h.round, h.exchange) != (t, exchange) or h.kind is Kind.REQUEST:
            raise Malformed(f"answers round {h.round}.{h.exchange}, not {t}.{exchange}")
        if h.kind is Kind.NEED_FULL:
            return Failure("requested the full state although it was just sent") if full else Kind.NEED_FULL
        checked = tuple(CheckedPart(part, _check(part, declared, server)) for part in message.parts)
        missing = {n for n, d in declared.items() if d.how != "relay"} - {p.name for p in message.parts}
        if missing:
            raise Malformed(f"lacks {', '.join(sorted(missing))}")
        return checked
    except Exception as e:  # a bad reply excludes its client; it does not stop the round
        return Failure(f"reply refused: {reason_of(e)}")


def _reason(parts: tuple[Part, ...]) -> str:
    """The reason that a client gives for its failure, safe to print."""
    if len(parts) != 1 or parts[0].codec != "bytes" or len(parts[0].payload) > LONGEST_REASON:
        return "it failed without a proper reason"
    return printable(bytes(parts[0].array()).decode(errors="replace"))


def _check(part: Part, declared: Mapping[str, PartSpec], server: State) -> Array:
    """Decode a part; raise Malformed if it does not match its specification."""
    d = declared.get(part.name)
    if d is None or (d.how == "relay") != bool(part.peer):
        raise Malformed(f"part {part.name!r} is not declared")
    if len(part.payload) > d.most_bytes:
        raise Malformed(f"part {part.name!r} has {len(part.payload):,} bytes; at most {d.most_bytes:,} are accepted")
    if part.codec != d.codec or not d.has_shape(part.shape):
        shape = (d.size,) if len(d.shape) == 1 and d.unpack is None else d.shape
        found, expected = _format(part.shape, part.codec), _format(shape, d.codec)
        raise Malformed(f"part {part.name!r} is {found}, declared is {expected}")
    a = part.array()
    if d.unpack is not None:
        a = d.unpack(server, a)
        if d.size is not None and a.shape != (d.size,):
            raise Malformed(f"part {part.name!r} decodes to the shape {a.shape}, declared is ({d.size},)")
    low, high = (float(a.min()), float(a.max())) if a.size else (0.0, 0.0)
    least = max(d.least, -d.limit)
    ranged = d.how == "sum" or d.codec.startswith("float")
    if ranged and not least <= low <= high <= d.limit:
        worst = low if low < least else high
        raise Malformed(f"part {part.name!r} has the value {worst:.3g}, outside {least:g} to {d.limit:g}")
    return a


def _format(shape: tuple[int | None, ...], codec: str) -> str:
    return f"{' x '.join('any' if n is None else str(n) for n in shape) or 'one number'} x {codec}"


class OrderedReplies:
    """Passes on replies in the order of the clients where the method has `each` parts, else as they arrive.

    Arrays of `each` parts are not stored while a reply waits: they are decoded again.
    """

    def __init__(self, order: Iterable[str], declared: Mapping[str, PartSpec]) -> None:
        self.order = list(order)
        self.names = {name for name, d in declared.items() if d.how == "each"}
        self.waiting: dict[str, CheckedReply | None] = {}

    def put(self, client: str, reply: CheckedReply | None) -> Iterator[tuple[str, CheckedReply]]:
        """Add one client's reply, or None for a failure; yield the replies that are next in order."""
        if not self.names:
            if reply is not None:
                yield client, reply
            return
        self.waiting[client] = reply and tuple(
            CheckedPart(p.part, _DECODE_LATER) if p.part.name in self.names else p for p in reply
        )
        while self.order and self.order[0] in self.waiting:
            name = self.order.pop(0)
            ready = self.waiting.pop(name)
            if ready is not None:
                yield name, ready
