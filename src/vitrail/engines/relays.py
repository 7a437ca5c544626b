"""Parts that clients send each other through the server, stored with the server's state until they are delivered."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from vitrail.wire.message import Part

Relay = dict[str, Any]  # a part on its way to a client, as a state tree


def relays_of(client: str, parts: Iterable[Part], recipients: Collection[str]) -> list[Relay]:
    """Return the parts of a reply that are for other clients; parts for unknown clients are dropped."""
    return [
        {"from": client, "to": p.peer, "name": p.name, "codec": p.codec, "shape": list(p.shape), "payload": p.payload}
        for p in parts
        if p.peer in recipients
    ]


def undelivered(old: list[Relay], new: list[Relay], replied: Collection[str]) -> list[Relay]:
    """Return new relays, and old ones whose recipient has not replied and that no new one replaces."""
    newer = {(r["from"], r["to"], r["name"]) for r in new}
    waiting = [r for r in old if r["to"] not in replied and (r["from"], r["to"], r["name"]) not in newer]
    return sorted(waiting + new, key=lambda r: (r["to"], r["from"], r["name"]))


def as_part(relay: Relay) -> Part:
    """Return a relay as the part that its recipient gets: `peer` is the sender."""
    return Part(relay["name"], relay["codec"], tuple(relay["shape"]), relay["payload"], relay["from"])
