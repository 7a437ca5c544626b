"""One round above any engine: whom to ask, what to send, what it came to, what it cost.

An engine is one function, `ask(requests)`: it takes (client, bytes) pairs lazily and yields (client, bytes or
Failure) as answers come. None among the requests says that there is nothing to ask before another answer is in.
Everything else is here, in replies.py and, for rounds without a barrier, in free.py, written once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from vitrail.engines.replies import (
    CheckedPart,
    Failure,
    FixedPointSum,
    OrderedReplies,
    Relay,
    each_of,
    read_reply,
    relays_of,
    still_under_way,
)
from vitrail.engines.requests import RequestBuilder
from vitrail.engines.robust import Norms, RobustSum, sum_for
from vitrail.methods.base import Method, PartSpec, Sums
from vitrail.utils.errors import reason_of
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, finite
from vitrail.wire.message import Kind, Part


@dataclass
class RoundResult:
    """What a round came to; bytes are lengths of what was sent, counted where it was sent."""

    round: int
    requested: int = 0
    down: dict[str, int] = field(default_factory=dict)
    up: dict[str, int] = field(default_factory=dict)
    replied: list[str] = field(default_factory=list)
    excluded: dict[str, str] = field(default_factory=dict)
    outliers: dict[str, str] = field(
        default_factory=dict
    )  # clients whose replies are far from the others', and how far
    metrics: dict[str, float] = field(default_factory=dict)
    floats_up: int = 0  # what the same arrays would have cost as float32
    floats_down: int = 0
    void: str = ""  # why the round was not closed: the sums of this round are lost


Ask = Callable[[Iterable[tuple[str, bytes] | None]], Iterator[tuple[str, bytes | Failure]]]
Tell = Callable[[RoundResult], None]


@dataclass
class Federation:
    """The server between rounds: all that is saved in a checkpoint."""

    round: int
    server: State
    known: set[str] = field(default_factory=set)  # clients that have answered: they hold what they were told
    relays: list[Relay] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=dict)  # of each client, the last round that its reply is in

    def tree(self) -> State:
        """As saveable state."""
        known, counted = sorted(self.known), dict(sorted(self.counted.items()))
        return {"round": self.round, "server": self.server, "known": known, "relays": self.relays, "counted": counted}

    @staticmethod
    def from_tree(tree: State) -> Federation:
        """From saved state."""
        return Federation(tree["round"], tree["server"], set(tree["known"]), tree["relays"], tree.get("counted", {}))


def select_clients(clients: Sequence[str], per_round: int, rng: Rng) -> list[str]:
    """A sample of clients, in their own order."""
    if per_round >= len(clients):
        return list(clients)
    drawn = rng.numpy().choice(len(clients), per_round, replace=False)
    return [clients[i] for i in sorted(drawn)]


def run_round(
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
) -> tuple[Federation, RoundResult]:
    """Play one round and return the federation after it; `before` learns who is asked before anybody is."""
    t, declared = fed.round, method.reply_spec()
    rng = rng.child("server", t)
    server, who = method.start_round(fed.server, clients, rng.child("open"))
    before(t, who)
    outcome = RoundResult(t, requested=len(who))
    post = RequestBuilder(method, server, fed, run, outcome)
    if method.task.secagg_threshold and who:
        from vitrail.engines.secagg.server import gather  # it builds on this file

        sums = gather(method, post, who, ask, tell)
        return finish_round(method, fed, server, who, outcome, sums, rng, quorum)
    tally, turn, norms = sum_for(method, declared), OrderedReplies(who, declared), Norms(declared)
    recipients = fed.known | set(clients)

    again: list[str] = []  # clients that hold another state than the server thought
    relays: list[Relay] = []
    for full, group in ((False, list(who)), (True, again)):
        for client, answer in ask(post.requests(group, full)):
            reply = collect_replies(answer, client, run, declared, server, outcome, full=full)
            if reply is Kind.NEED_FULL:
                again.append(client)
                continue
            for name, taken in turn.put(client, reply):
                if (received := accept_reply(method, server, name, taken, tally, outcome, norms)) is None:
                    continue
                server = received
                relays += relays_of(name, (x.part for x in taken), recipients)
            tell(outcome)

    sums, outcome.outliers = tally.sums(len(outcome.replied)), norms.far()
    return finish_round(method, fed, server, who, outcome, sums, rng, quorum, relays)


def collect_replies(
    answer: bytes | Failure,
    client: str,
    run: bytes,
    declared: Mapping[str, PartSpec],
    server: State,
    outcome: RoundResult,
    *,
    full: bool,
) -> tuple[CheckedPart, ...] | Literal[Kind.NEED_FULL] | None:
    """A reply, None for a failure, or that the client must be told everything; written down in the outcome."""
    outcome.up[client] = outcome.up.get(client, 0) + (len(answer) if isinstance(answer, bytes) else 0)
    reply = read_reply(answer, run, outcome.round, client, declared, server)
    if reply is Kind.NEED_FULL and not full:
        return Kind.NEED_FULL
    if isinstance(reply, Kind):
        reply = Failure("asked for the full state although it was just sent")
    if isinstance(reply, Failure):
        outcome.excluded[client] = reply.reason
        return None
    outcome.replied.append(client)
    return reply


def accept_reply(
    method: Method,
    server: State,
    client: str,
    reply: tuple[CheckedPart, ...],
    tally: FixedPointSum | RobustSum,
    outcome: RoundResult,
    norms: Norms | None = None,
) -> State | None:
    """Put a reply into the server's state and the sums.

    Returns:
        The server's state with the reply. None where the reply is well-formed but cannot be used, whatever was raised:
        then the client is excluded, and neither the state nor the sums have anything of it.
    """
    try:
        each = each_of(reply, tally.declared)
        received = method.receive(server, client, each) if each else server
        floats = sum(4 * _numbers(x.part, tally.declared[x.part.name]) for x in reply)
        if norms is not None:
            norms.add(client, reply)
        tally.add(reply)
    except Exception as e:
        outcome.replied.remove(client)
        outcome.excluded[client] = f"reply refused: {reason_of(e)}"
        return None
    outcome.floats_up += floats
    return received


def _numbers(part: Part, d: PartSpec) -> int:
    """How many numbers a part stands for."""
    return d.numbers or (math.prod(part.shape) if d.unpack is None else d.size) or 0


def finish_round(
    method: Method,
    fed: Federation,
    server: State,
    who: Sequence[str],
    outcome: RoundResult,
    sums: Sums | Failure,
    rng: Rng,
    quorum: int,
    relays: Sequence[Relay] = (),
) -> tuple[Federation, RoundResult]:
    """The federation after a round: with its sums where there are any, else as it was."""
    outcome.replied.sort(key=list(who).index)
    after = Federation(fed.round + 1, server, fed.known | set(outcome.replied), counted=fed.counted)
    after.relays = still_under_way(fed.relays, list(relays), outcome.replied)
    if isinstance(sums, Failure):
        outcome.void = sums.reason
        return after, outcome
    if who and len(outcome.replied) < quorum:
        outcome.void = f"{len(outcome.replied)} of {len(who)} clients answered, quorum is {quorum}"
        return after, outcome
    try:
        closed = method.finish_round(server, sums, rng.child("close"))
    except Exception as e:  # what clients sent, in this round or before, may be more than the method can handle
        outcome.void = f"the round could not be closed: {reason_of(e)}"
        return after, outcome
    if not finite(closed):
        outcome.void = "the server's state would no longer be finite"
        return after, outcome
    after.server = closed
    after.counted = {**fed.counted, **dict.fromkeys(outcome.replied, fed.round)}
    outcome.metrics = {
        name.removeprefix("metric."): float(v[0] / sums.clients)
        for name, v in sums.values.items()
        if name.startswith("metric.") and sums.clients
    }
    return after, outcome
