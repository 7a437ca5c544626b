"""What the server makes of replies: each is checked against what the method declared, then added up or handed on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.methods.base import PartSpec, Sums, fixed_point_scale
from vitrail.utils.errors import Malformed, printable, reason_of
from vitrail.utils.state import State
from vitrail.wire.bits import BitCounts
from vitrail.wire.codecs import Array
from vitrail.wire.message import LONGEST_REASON, Kind, Part, decode


@dataclass(frozen=True)
class Failure:
    """A client that did not answer, and why."""

    reason: str


Relay = dict[str, Any]  # a part on its way to a client, as saveable state


@dataclass(frozen=True)
class CheckedPart:
    """A part of a reply that was checked, and the numbers in it."""

    part: Part
    array: Array


_LATER: Array = np.empty(0)  # in place of numbers that are decoded again when they are needed


def read_reply(
    answer: bytes | Failure,
    run: bytes,
    t: int,
    client: str,
    declared: Mapping[str, PartSpec],
    server: State,
    exchange: int = 0,
) -> tuple[CheckedPart, ...] | Kind | Failure:
    """A reply's parts, all checked, or why it is left out."""
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
        if h.kind is not Kind.REPLY:
            return h.kind
        taken = tuple(CheckedPart(part, _check(part, declared, server)) for part in message.parts)
        missing = {n for n, d in declared.items() if d.how != "relay"} - {p.name for p in message.parts}
        if missing:
            raise Malformed(f"lacks {', '.join(sorted(missing))}")
        return taken
    except Exception as e:  # whatever a reply does, the round goes on without this client
        return Failure(f"reply refused: {reason_of(e)}")


def _reason(parts: tuple[Part, ...]) -> str:
    """A client's own words, safe to print."""
    if len(parts) != 1 or parts[0].codec != "bytes" or len(parts[0].payload) > LONGEST_REASON:
        return "it failed without a proper reason"
    return printable(bytes(parts[0].array()).decode(errors="replace"))


def _check(part: Part, declared: Mapping[str, PartSpec], server: State) -> Array:
    """The numbers of a part, which are what was declared."""
    d = declared.get(part.name)
    if d is None or (d.how == "relay") != bool(part.peer):
        raise Malformed(f"part {part.name!r} is not declared")
    if len(part.payload) > d.most_bytes:
        raise Malformed(f"part {part.name!r} has {len(part.payload):,} bytes; at most {d.most_bytes:,} are taken")
    if part.codec != d.codec or not d.has_shape(part.shape):
        raise Malformed(f"part {part.name!r} is {_kind(part.shape, part.codec)}, declared is {_declared(d)}")
    a = part.array()
    if d.unpack is not None:
        a = d.unpack(server, a)
        if d.size is not None and a.shape != (d.size,):
            raise Malformed(f"part {part.name!r} decodes to the shape {a.shape}, declared is ({d.size},)")
    low, high = (float(a.min()), float(a.max())) if a.size else (0.0, 0.0)
    ranged = d.how == "sum" or d.codec.startswith("float")
    if ranged and not max(d.least, -d.limit) <= low <= high <= d.limit:
        worst = low if low < max(d.least, -d.limit) else high
        raise Malformed(f"part {part.name!r} holds {worst:.3g}, outside {max(d.least, -d.limit):g} to {d.limit:g}")
    return a


def _declared(d: PartSpec) -> str:
    return _kind((d.size,) if len(d.shape) == 1 and d.unpack is None else d.shape, d.codec)


def _kind(shape: tuple[int | None, ...], codec: str) -> str:
    return f"{' x '.join('any' if n is None else str(n) for n in shape) or 'one number'} x {codec}"


class FixedPointSum:
    """Adds up `sum` parts as they arrive, in 64-bit fixed point: memory stays that of one reply, order is nothing.

    Parts that are bits are counted as such.
    """

    def __init__(self, declared: Mapping[str, PartSpec], clients: int) -> None:
        self.declared = declared
        self.scale = {name: fixed_point_scale(d.limit, clients) for name, d in declared.items()}
        self.total: dict[str, NDArray[np.int64]] = {}
        self.counts: dict[str, BitCounts] = {}

    def add(self, reply: Iterable[CheckedPart]) -> None:
        """Add one client's checked reply, all of it or, where it raises, nothing."""
        bits: dict[str, Array] = {}
        wholes: dict[str, NDArray[np.int64]] = {}
        for name, a in ((taken.part.name, taken.array) for taken in reply):
            if self.declared[name].how != "sum":
                continue
            if self.declared[name].bits:
                bits[name] = np.packbits(a)
                self.counts.setdefault(name, BitCounts(a.size))
            else:  # what is no float is whole already
                whole = np.rint(a * np.float64(self.scale[name])) if a.dtype.kind == "f" else a
                wholes[name] = whole.astype(np.int64)
        for name, packed in bits.items():
            self.counts[name].add(packed)
        for name, added in wholes.items():  # in place, of one shape: this cannot fail
            if name in self.total:
                self.total[name] += added
            else:
                self.total[name] = added

    def sums(self, clients: int) -> Sums:
        """All sums as numbers again."""
        values = {name: counts.totals().astype(np.float64) for name, counts in self.counts.items()}
        for name, total in self.total.items():
            scale = self.scale[name] if self.declared[name].codec.startswith("float") else 1.0
            values[name] = total / np.float64(scale)
        return Sums(values, clients)


class OrderedReplies:
    """Hands on replies: where there are `each` parts in the order of the clients, in whatever order they arrive.

    Those parts wait encoded.
    """

    def __init__(self, order: Iterable[str], declared: Mapping[str, PartSpec]) -> None:
        self.order = list(order)
        self.names = {name for name, d in declared.items() if d.how == "each"}
        self.waiting: dict[str, tuple[CheckedPart, ...] | None] = {}

    def put(self, client: str, reply: tuple[CheckedPart, ...] | None) -> Iterator[tuple[str, tuple[CheckedPart, ...]]]:
        """Take one client's reply, or None for a failure, and give all whose turn has come."""
        if not self.names:
            if reply is not None:
                yield client, reply
            return
        self.waiting[client] = reply and tuple(
            CheckedPart(t.part, _LATER) if t.part.name in self.names else t for t in reply
        )
        while self.order and self.order[0] in self.waiting:
            name = self.order.pop(0)
            ready = self.waiting.pop(name)
            if ready is not None:
                yield name, ready


def each_of(reply: Iterable[CheckedPart], declared: Mapping[str, PartSpec]) -> dict[str, Array]:
    """A reply's parts for `receive`."""
    return {taken.part.name: taken.part.array() for taken in reply if declared[taken.part.name].how == "each"}


def relays_of(client: str, parts: Iterable[Part], recipients: Collection[str]) -> list[Relay]:
    """A reply's parts for other clients; those for nobody we know are dropped."""
    return [
        {"from": client, "to": p.peer, "name": p.name, "codec": p.codec, "shape": list(p.shape), "payload": p.payload}
        for p in parts
        if p.peer in recipients
    ]


def still_under_way(old: list[Relay], new: list[Relay], answered: Collection[str]) -> list[Relay]:
    """New relays, and old ones whose recipient has not answered since, unless the sender has a newer one for it."""
    newer = {(r["from"], r["to"], r["name"]) for r in new}
    kept = [r for r in old if r["to"] not in answered and (r["from"], r["to"], r["name"]) not in newer]
    return sorted(kept + new, key=lambda r: (r["to"], r["from"], r["name"]))


def as_part(relay: Relay) -> Part:
    """A relayed part as its recipient gets it: `peer` is now who sent it."""
    return Part(relay["name"], relay["codec"], tuple(relay["shape"]), relay["payload"], relay["from"])
