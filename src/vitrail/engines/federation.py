"""State of the server between rounds, the result of a round, relays between clients, and the interface of an engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitrail.engines.replies import Failure
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire.message import Part

Relay = dict[str, Any]  # a part on its way from a client to another, as a state tree


@dataclass
class RoundResult:
    """Result of one round.

    Args:
        round: Number of the round, from 0.
        requested: Number of clients that were sent a request.
        down: Bytes sent to each client, counted where the messages are encoded.
        up: Bytes received from each client.
        replied: Clients whose replies were aggregated, in the order of the request.
        excluded: Clients whose replies were not aggregated, with the reason.
        outliers: Clients whose replies have a much larger norm than the median, with the ratio.
        metrics: Mean over clients of each part `metric.*`.
        floats_up: Bytes of the same replies as plain float32 arrays.
        floats_down: Bytes of the same requests as plain float32 arrays.
        void: Why the round was discarded; empty: it was not.
    """

    round: int
    requested: int = 0
    down: Counter[str] = field(default_factory=Counter)
    up: Counter[str] = field(default_factory=Counter)
    replied: list[str] = field(default_factory=list)
    excluded: dict[str, str] = field(default_factory=dict)
    outliers: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    floats_up: int = 0
    floats_down: int = 0
    void: str = ""

    def count_up(self, client: str, reply: bytes | Failure) -> None:
        """Count the bytes of a client's reply."""
        self.up[client] += len(reply) if isinstance(reply, bytes) else 0


Ask = Callable[[Iterable[tuple[str, bytes] | None]], Iterator[tuple[str, bytes | Failure]]]
"""An engine: takes (client, request) pairs lazily, yields (client, reply or Failure) in the order of arrival.

None among the requests means that there is no further request before another reply has arrived; it is not sent while
no request is in progress.
"""
OnProgress = Callable[[RoundResult], None]  # called after each reply with the result so far
OnStart = Callable[[int, Sequence[str]], None]  # called before the requests of a round with its clients


@dataclass
class Federation:
    """State of the server between rounds; a checkpoint stores all of it.

    Args:
        round: Number of the next round.
        server: The method's server state.
        known: Clients that have replied before: they have what the server sent them.
        relays: Parts for other clients that are not delivered yet.
        counted: For each client, the last round whose aggregate includes its reply.
    """

    round: int
    server: State
    known: set[str] = field(default_factory=set)
    relays: list[Relay] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=dict)

    def tree(self) -> State:
        """Return the federation as a state tree that can be saved."""
        return {**vars(self), "known": sorted(self.known), "counted": dict(sorted(self.counted.items()))}

    def undelivered(self, new: list[Relay], replied: Collection[str]) -> list[Relay]:
        """Return new relays, and old ones whose recipient has not replied and that no new one replaces."""
        newer = {(r["from"], r["to"], r["name"]) for r in new}
        waiting = [r for r in self.relays if r["to"] not in replied and (r["from"], r["to"], r["name"]) not in newer]
        return sorted(waiting + new, key=lambda r: (r["to"], r["from"], r["name"]))

    @staticmethod
    def from_tree(tree: State) -> Federation:
        """Restore a federation from a saved state tree."""
        return Federation(tree["round"], tree["server"], set(tree["known"]), tree["relays"], tree.get("counted", {}))


def select_clients(clients: Sequence[str], per_round: int, rng: Rng) -> list[str]:
    """Sample the clients of a round without replacement.

    Args:
        clients: All clients.
        per_round: Number of clients to select.
        rng: Source of the selection.

    Returns:
        The selected clients, in the order of `clients`.

    Examples:
        >>> select_clients(["a", "b", "c"], 3, Rng((0,)))
        ['a', 'b', 'c']
    """
    if per_round >= len(clients):
        return list(clients)
    drawn = rng.numpy().choice(len(clients), per_round, replace=False)
    return [clients[i] for i in sorted(drawn)]


def relays_of(client: str, parts: Iterable[Part], recipients: Collection[str]) -> list[Relay]:
    """Return the parts of a reply that are for other clients; parts for unknown clients are dropped."""
    return [
        {"from": client, "to": p.peer, "name": p.name, "codec": p.codec, "shape": list(p.shape), "payload": p.payload}
        for p in parts
        if p.peer in recipients
    ]


def as_part(relay: Relay) -> Part:
    """Return a relay as the part that its recipient gets: `peer` is the sender."""
    return Part(relay["name"], relay["codec"], tuple(relay["shape"]), relay["payload"], relay["from"])
