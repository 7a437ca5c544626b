"""What clients share once and everybody then holds: the server gathers it, and sends it to whoever lacks it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vitrail.methods.base import Broadcast
from vitrail.utils.state import State
from vitrail.wire.codecs import Array
from vitrail.wire.message import NO_BASE, digest

Told = Mapping[str, tuple[str, Array]]


def name_of(pool: Mapping[str, Array]) -> bytes:
    """Names a pool by its content; none has no name."""
    return digest(b"".join(np.ascontiguousarray(pool[k]).tobytes() for k in sorted(pool))) if pool else NO_BASE


def gathered(shares: Mapping[str, Mapping[str, Array]]) -> State:
    """All that clients shared, client by client in the order of their names, and these names."""
    clients = sorted(shares)
    parts = [shares[client] for client in clients]
    pool = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]} if parts else {}
    return {"parts": pool, "name": name_of(pool), "clients": clients}


def outgoing(parts: Told, pool: State, codecs: Mapping[str, str], full: bool) -> Broadcast:
    """A message to a client that holds the pool, or with it."""
    if full and pool["parts"]:
        return Broadcast({**parts, **{name: (codecs[name], array) for name, array in pool["parts"].items()}})
    return Broadcast(parts, NO_BASE if full else pool["name"])
