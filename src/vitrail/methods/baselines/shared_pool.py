"""A pool of arrays that each client shares once; the server collects them and sends all to clients that lack them.

Used by fedmix.py (means of images) and sdafl.py (generated images).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vitrail.methods.base import Broadcast
from vitrail.utils.state import State
from vitrail.wire.codecs import Array
from vitrail.wire.message import NO_BASE, digest


def pool_digest(pool: Mapping[str, Array]) -> bytes:
    """Return a digest of a pool's content; NO_BASE for an empty pool."""
    return digest(b"".join(np.ascontiguousarray(pool[k]).tobytes() for k in sorted(pool))) if pool else NO_BASE


def collect(shares: Mapping[str, Mapping[str, Array]]) -> State:
    """Concatenate what clients shared, in the order of their names."""
    clients = sorted(shares)
    parts = [shares[client] for client in clients]
    pool = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]} if parts else {}
    return {"parts": pool, "name": pool_digest(pool), "clients": clients}


def broadcast(parts: Mapping[str, tuple[str, Array]], pool: State, codecs: Mapping[str, str], full: bool) -> Broadcast:
    """Return a message with the pool, or, unless `full`, one for a client that already has it."""
    if full and pool["parts"]:
        return Broadcast({**parts, **{name: (codecs[name], array) for name, array in pool["parts"].items()}})
    return Broadcast(parts, NO_BASE if full else pool["name"])
