"""Named random streams: every draw comes from a generator keyed by its purpose, never from a global one.

A key is (root, purpose, round, client, ...). The generator is counter-based (Philox) and each key has its own stream,
so no draw depends on earlier draws: the order of clients, the number of workers and a restart change nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

Key = int | str | bytes


def _digest(parts: tuple[Key, ...]) -> bytes:
    """Hash a key such that ("a", "bc") and ("ab", "c"), or 1 and "1", differ."""
    h = hashlib.blake2b(digest_size=16, person=b"vitrail-rng")
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode()
        h.update(f"{type(part).__name__}:{len(raw)}:".encode() + raw)
    return h.digest()


@dataclass(frozen=True)
class Rng:
    """A node in the tree of random streams.

    An `Rng` has no state: the same key always gives the same numbers. Derive one child per purpose, and never use one
    stream for two purposes.

    Args:
        key: The path from the root, such as `(seed,)`.

    Examples:
        >>> root = Rng((7,))
        >>> root.child("mask", 3).seed() == root.child("mask", 3).seed()
        True
        >>> root.child("mask", 3).seed() == root.child("mask", 4).seed()
        False
        >>> root.child("noise").numpy().integers(100, size=3).tolist()
        [99, 11, 90]
    """

    key: tuple[Key, ...]

    def child(self, *names: Key) -> Rng:
        """Return the stream for a narrower purpose.

        Args:
            names: Text, integers or bytes, such as the purpose, the round and the client.

        Returns:
            The stream whose key is extended by the names.
        """
        return Rng((*self.key, *names))

    def seed(self) -> int:
        """Return the 63-bit seed of this stream.

        Returns:
            An integer from 0 to 2**63 - 1.
        """
        return int.from_bytes(_digest(self.key)[:8], "little") >> 1

    def numpy(self) -> np.random.Generator:
        """Return a new NumPy generator at the start of this stream.

        Returns:
            A Philox generator; two calls return equal generators.
        """
        return np.random.Generator(np.random.Philox(key=int.from_bytes(_digest(self.key), "little")))

    def torch(self) -> torch.Generator:
        """Return a new CPU torch generator at the start of this stream.

        Returns:
            A generator with `seed()` as its seed; two calls return equal generators.
        """
        import torch

        return torch.Generator().manual_seed(self.seed())
