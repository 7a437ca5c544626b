"""Randomness by name: every draw comes from a generator keyed by what it is for, never from a global one.

A key is (root, purpose, round, client, ...). Because the generator is counter-based (Philox) and each key has its
own stream, no draw depends on what was drawn before it elsewhere: the order of clients, the number of workers and a
restart change nothing.
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
    """Hash a key so that ("a", "bc") and ("ab", "c"), or 1 and "1", never meet."""
    h = hashlib.blake2b(digest_size=16, person=b"vitrail-rng")
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode()
        h.update(f"{type(part).__name__}:{len(raw)}:".encode() + raw)
    return h.digest()


@dataclass(frozen=True)
class Rng:
    """A place in the tree of random streams.

    >>> root = Rng((7,))
    >>> root.child("mask", 3).seed() == root.child("mask", 3).seed()
    True
    >>> root.child("mask", 3).seed() == root.child("mask", 4).seed()
    False
    """

    key: tuple[Key, ...]

    def child(self, *names: Key) -> Rng:
        """The stream for a narrower purpose."""
        return Rng((*self.key, *names))

    def seed(self) -> int:
        """A 63-bit seed; the same each time it is asked for."""
        return int.from_bytes(_digest(self.key)[:8], "little") >> 1

    def numpy(self) -> np.random.Generator:
        """A fresh NumPy generator at the start of this stream."""
        return np.random.Generator(np.random.Philox(key=int.from_bytes(_digest(self.key), "little")))

    def torch(self) -> torch.Generator:
        """A fresh CPU torch generator at the start of this stream."""
        import torch

        return torch.Generator().manual_seed(self.seed())
