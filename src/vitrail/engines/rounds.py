"""One round above any engine: whom to ask, what to check, what to add up, what it cost.

An engine is one function, `ask(requests)`: it takes (client, bytes) pairs lazily and yields (client, bytes or
Failure) as answers come. Everything else is here, written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import Malformed
from vitrail.methods.base import Declared, Method, Sums, fixed_point_scale
from vitrail.rng import Rng
from vitrail.state import State
from vitrail.wire.codecs import Array
from vitrail.wire.message import Header, Kind, Message, Part, decode, encode, make_part


@dataclass(frozen=True)
class Failure:
    """A client that did not answer, and why."""

    reason: str


Ask = Callable[[Iterable[tuple[str, bytes]]], Iterator[tuple[str, bytes | Failure]]]
Tell = Callable[["Outcome"], None]


@dataclass
class Outcome:
    """What a round came to; bytes are lengths of what was sent, counted where it was sent."""

    round: int
    asked: int = 0
    down: dict[str, int] = field(default_factory=dict)
    up: dict[str, int] = field(default_factory=dict)
    answered: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    void: bool = False  # too few answered: the model stays as it was


@dataclass
class Federation:
    """The server between rounds: all that is saved in a checkpoint."""

    round: int
    server: State
    known: set[str] = field(default_factory=set)  # clients that have answered: they hold what they were told
    relays: list[dict[str, Any]] = field(default_factory=list)  # parts on their way to a client

    def tree(self) -> State:
        """As saveable state."""
        return {
            "round": self.round,
            "server": self.server,
            "known": sorted(self.known),
            "relays": self.relays,
        }

    @staticmethod
    def from_tree(tree: State) -> Federation:
        """From saved state."""
        return Federation(tree["round"], tree["server"], set(tree["known"]), tree["relays"])


def choose(clients: Sequence[str], per_round: int, rng: Rng) -> list[str]:
    """A sample of clients, in their own order."""
    if per_round >= len(clients):
        return list(clients)
    drawn = rng.numpy().choice(len(clients), per_round, replace=False)
    return [clients[i] for i in sorted(drawn)]


def play(
    method: Method,
    fed: Federation,
    run: bytes,
    clients: Sequence[str],
    ask: Ask,
    rng: Rng,
    *,
    quorum: int = 1,
    tell: Tell = lambda _: None,
) -> tuple[Federation, Outcome]:
    """Play one round and return the federation after it."""
    t = fed.round
    rng = rng.child("server", t)
    server, who = method.open_round(fed.server, clients, rng.child("open"))
    outcome = Outcome(t, asked=len(who))
    tally = Tally(method.declares(), method.task.clients)
    post = _Post(method, server, fed, run, outcome)
    turn = _InTurn(list(who)) if tally.ordered else None

    again: list[str] = []  # clients that hold another state than the server thought
    relays: list[dict[str, Any]] = []
    for full, group in ((False, list(who)), (True, again)):
        for client, answer in ask(post.requests(group, full)):
            outcome.up[client] = outcome.up.get(client, 0) + (len(answer) if isinstance(answer, bytes) else 0)
            reply = read_reply(answer, run, t, client, tally.declared)
            if reply == Kind.NEED_FULL and not full:
                again.append(client)
                continue
            if isinstance(reply, Kind):
                reply = Failure("asked for the full state although it was just sent")
            if isinstance(reply, Failure):
                outcome.left_out[client] = reply.reason
            else:
                outcome.answered.append(client)
                tally.add(reply)
                relays += [_relay(client, p) for p in reply if p.peer]
            if turn is not None:
                each = None if isinstance(reply, Failure) else tally.each(reply)
                for name, parts in turn.put(client, each):
                    server = method.receive(server, name, parts)
            tell(outcome)

    outcome.answered.sort(key=list(who).index)
    fed_known = fed.known | set(outcome.answered)
    relays = sorted(
        _undelivered(fed.relays, outcome.answered, relays) + relays,
        key=lambda r: (r["to"], r["from"], r["name"]),
    )
    if who and len(outcome.answered) < quorum:
        outcome.void = True
        return Federation(t + 1, fed.server, fed_known, relays), outcome
    sums = tally.sums(len(outcome.answered))
    server = method.close_round(server, sums, rng.child("close"))
    outcome.metrics = {
        name.removeprefix("metric."): float(v[0] / sums.clients)
        for name, v in sums.values.items()
        if name.startswith("metric.") and sums.clients
    }
    return Federation(t + 1, server, fed_known, relays), outcome


class _Post:
    """Makes requests one at a time; an array sent to many clients is encoded once."""

    def __init__(self, method: Method, server: State, fed: Federation, run: bytes, outcome: Outcome) -> None:
        self.method, self.server, self.fed, self.run, self.outcome = method, server, fed, run, outcome
        self.memo: dict[str, tuple[Array, Part]] = {}

    def requests(self, clients: Iterable[str], full: bool) -> Iterator[tuple[str, bytes]]:
        last: tuple[tuple[int, ...], bytes] = ((), b"")
        for client in clients:
            out = self.method.broadcast(self.server, client, full or client not in self.fed.known)
            parts = [self._part(name, codec, array) for name, (codec, array) in out.parts.items()]
            parts += [
                Part(r["name"], r["codec"], tuple(r["shape"]), r["payload"], r["from"])
                for r in self.fed.relays
                if r["to"] == client
            ]
            same = (*map(id, parts), hash(out.base))
            if last[0] != same:
                last = (
                    same,
                    encode(
                        Message(
                            Header(Kind.REQUEST, self.run, self.fed.round, "server", 0, out.base),
                            tuple(parts),
                        )
                    ),
                )
            self.outcome.down[client] = self.outcome.down.get(client, 0) + len(last[1])
            yield client, last[1]

    def _part(self, name: str, codec: str, array: Array) -> Part:
        kept = self.memo.get(name)
        if kept is None or not _same(kept[0], array) or kept[1].codec != codec:
            kept = self.memo[name] = (array, make_part(name, codec, array))
        return kept[1]


def _same(a: Array, b: Array) -> bool:
    """The same object, or small enough to compare."""
    return a is b or (a.size <= 16 and a.dtype == b.dtype and np.array_equal(a, b))


def read_reply(
    answer: bytes | Failure, run: bytes, t: int, client: str, declared: Mapping[str, Declared]
) -> tuple[Part, ...] | Kind | Failure:
    """A reply's parts, each checked against its declaration, or why it is left out."""
    if isinstance(answer, Failure):
        return answer
    try:
        message = decode(answer)
        h = message.header
        if (h.run, h.sender) != (run, client):
            raise Malformed(f"claims to be from {h.sender!r}" if h.run == run else "belongs to another run")
        if h.kind is Kind.FAILED and message.parts:
            return Failure(bytes(message.parts[0].array()).decode(errors="replace"))
        if h.round != t or h.kind is Kind.REQUEST:
            raise Malformed(f"answers round {h.round}, not {t}")
        if h.kind is not Kind.REPLY:
            return h.kind
        for part in message.parts:
            _check(part, declared)
        missing = {n for n, d in declared.items() if d.how != "relay"} - {p.name for p in message.parts}
        if missing:
            raise Malformed(f"lacks {', '.join(sorted(missing))}")
        return message.parts
    except Malformed as e:
        return Failure(f"reply refused: {e}")


def _check(part: Part, declared: Mapping[str, Declared]) -> None:
    d = declared.get(part.name)
    if d is None or (d.how == "relay") != bool(part.peer):
        raise Malformed(f"part {part.name!r} is not declared")
    size = int(np.prod(part.shape, dtype=np.int64))
    if part.codec != d.codec or (d.size is not None and size != d.size) or len(part.payload) > d.limit_bytes:
        raise Malformed(f"part {part.name!r} is {size} x {part.codec}, declared is {d.size or 'any'} x {d.codec}")
    if d.how != "relay":
        a = part.array()
        largest = float(np.abs(a).max()) if a.size else 0.0
        if d.how == "sum" and largest > d.limit:
            raise Malformed(f"part {part.name!r} holds {largest:.3g}, beyond the declared limit {d.limit:g}")


class Tally:
    """Adds up `sum` parts as they arrive, in 64-bit fixed point: memory stays that of one reply, order is nothing."""

    def __init__(self, declared: Mapping[str, Declared], clients: int) -> None:
        self.declared = declared
        self.scale = {name: fixed_point_scale(d.limit, clients) for name, d in declared.items()}
        self.total: dict[str, NDArray[np.int64]] = {}
        self.ordered = any(d.how == "each" for d in declared.values())

    def add(self, parts: Iterable[Part]) -> None:
        """Add one client's checked reply."""
        for part in parts:
            d = self.declared[part.name]
            if d.how != "sum":
                continue
            a = part.array()
            if a.dtype.kind == "f":
                fixed = np.rint(a * np.float64(self.scale[part.name])).astype(np.int64)
            else:
                fixed = a  # bits and counts are integers already
            if part.name in self.total:
                self.total[part.name] += fixed
            else:
                self.total[part.name] = fixed.astype(np.int64)

    def each(self, parts: Iterable[Part]) -> dict[str, Array]:
        """One client's parts that are not for adding."""
        return {p.name: p.array() for p in parts if self.declared[p.name].how == "each"}

    def sums(self, clients: int) -> Sums:
        """All sums as numbers again."""
        values = {}
        for name, total in self.total.items():
            scale = self.scale[name] if self.declared[name].codec.startswith("float") else 1.0
            values[name] = total / np.float64(scale)
        return Sums(values, clients)


class _InTurn:
    """Hands on what arrives in any order in the order of the clients; a failure only moves the turn on."""

    def __init__(self, order: list[str]) -> None:
        self.order = order
        self.waiting: dict[str, dict[str, Array] | None] = {}

    def put(self, client: str, parts: dict[str, Array] | None) -> Iterator[tuple[str, dict[str, Array]]]:
        self.waiting[client] = parts
        while self.order and self.order[0] in self.waiting:
            name = self.order.pop(0)
            ready = self.waiting.pop(name)
            if ready is not None:
                yield name, ready


def _undelivered(old: list[dict[str, Any]], answered: list[str], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Parts whose recipient has not answered since, unless the same sender has a newer one under way."""
    newer = {(r["from"], r["to"], r["name"]) for r in new}
    return [r for r in old if r["to"] not in answered and (r["from"], r["to"], r["name"]) not in newer]


def _relay(sender: str, part: Part) -> dict[str, Any]:
    return {
        "from": sender,
        "to": part.peer,
        "name": part.name,
        "codec": part.codec,
        "shape": part.shape,
        "payload": part.payload,
    }
