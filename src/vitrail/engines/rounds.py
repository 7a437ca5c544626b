"""One round above any engine: whom to ask, what to send, what it came to, what it cost.

An engine is one function, `ask(requests)`: it takes (client, bytes) pairs lazily and yields (client, bytes or
Failure) as answers come. Everything else is here, and in replies.py, written once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from vitrail.engines.replies import Failure, InTurn, Relay, Tally, as_part, read_reply, relays_of, still_under_way
from vitrail.errors import Malformed
from vitrail.methods.base import Method, Sums
from vitrail.rng import Rng
from vitrail.state import State, finite
from vitrail.wire.codecs import Array
from vitrail.wire.message import Header, Kind, Message, Part, encode, make_part


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
    floats_up: int = 0  # what the same arrays would have cost as float32
    floats_down: int = 0
    void: str = ""  # why the round was not closed: the sums of this round are lost


Ask = Callable[[Iterable[tuple[str, bytes]]], Iterator[tuple[str, bytes | Failure]]]
Tell = Callable[[Outcome], None]
Extra = Callable[[str], Sequence[Part]]


@dataclass
class Federation:
    """The server between rounds: all that is saved in a checkpoint."""

    round: int
    server: State
    known: set[str] = field(default_factory=set)  # clients that have answered: they hold what they were told
    relays: list[Relay] = field(default_factory=list)

    def tree(self) -> State:
        """As saveable state."""
        return {"round": self.round, "server": self.server, "known": sorted(self.known), "relays": self.relays}

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
    before: Callable[[int, Sequence[str]], None] = lambda *_: None,
) -> tuple[Federation, Outcome]:
    """Play one round and return the federation after it; `before` learns who is asked before anybody is."""
    t, declared = fed.round, method.declares()
    rng = rng.child("server", t)
    server, who = method.open_round(fed.server, clients, rng.child("open"))
    before(t, who)
    outcome = Outcome(t, asked=len(who))
    post = Post(method, server, fed, run, outcome)
    if method.task.secure and who:
        from vitrail.engines.secure import gather  # it builds on this file

        sums = gather(method, post, who, ask, tell)
        return _close(method, fed, server, who, outcome, sums, rng, quorum)
    tally, turn = Tally(declared, method.task.clients), InTurn(who, declared)
    recipients = fed.known | set(clients)

    again: list[str] = []  # clients that hold another state than the server thought
    relays: list[Relay] = []
    for full, group in ((False, list(who)), (True, again)):
        for client, answer in ask(post.requests(group, full)):
            outcome.up[client] = outcome.up.get(client, 0) + (len(answer) if isinstance(answer, bytes) else 0)
            reply = read_reply(answer, run, t, client, declared, server)
            if reply == Kind.NEED_FULL and not full:
                again.append(client)
                continue
            if isinstance(reply, Kind):
                reply = Failure("asked for the full state although it was just sent")
            if isinstance(reply, Failure):
                outcome.left_out[client] = reply.reason
            else:
                outcome.answered.append(client)
                outcome.floats_up += sum(4 * (declared[x.part.name].numbers or x.array.size) for x in reply)
            for name, taken in turn.put(client, None if isinstance(reply, Failure) else reply):
                try:
                    if each := turn.each(taken):
                        server = method.receive(server, name, each)
                except Malformed as e:  # well-formed, but not what the method can use: nothing of it is kept
                    outcome.answered.remove(name)
                    outcome.left_out[name] = f"reply refused: {e}"
                    continue
                tally.add(taken)
                relays += relays_of(name, (x.part for x in taken), recipients)
            tell(outcome)

    sums = tally.sums(len(outcome.answered))
    return _close(method, fed, server, who, outcome, sums, rng, quorum, relays)


def _close(
    method: Method,
    fed: Federation,
    server: State,
    who: Sequence[str],
    outcome: Outcome,
    sums: Sums | Failure,
    rng: Rng,
    quorum: int,
    relays: Sequence[Relay] = (),
) -> tuple[Federation, Outcome]:
    """The federation after a round: with its sums where there are any, else as it was."""
    outcome.answered.sort(key=list(who).index)
    after = Federation(fed.round + 1, server, fed.known | set(outcome.answered))
    after.relays = still_under_way(fed.relays, list(relays), outcome.answered)
    if isinstance(sums, Failure):
        outcome.void = sums.reason
        return after, outcome
    if who and len(outcome.answered) < quorum:
        outcome.void = f"{len(outcome.answered)} of {len(who)} clients answered, quorum is {quorum}"
        return after, outcome
    closed = method.close_round(server, sums, rng.child("close"))
    if not finite(closed):
        outcome.void = "the server's state would no longer be finite"
        return after, outcome
    after.server = closed
    outcome.metrics = {
        name.removeprefix("metric."): float(v[0] / sums.clients)
        for name, v in sums.values.items()
        if name.startswith("metric.") and sums.clients
    }
    return after, outcome


class Post:
    """Makes requests one at a time; an array sent to many clients is encoded once."""

    def __init__(self, method: Method, server: State, fed: Federation, run: bytes, outcome: Outcome) -> None:
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
