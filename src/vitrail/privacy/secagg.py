"""Secure aggregation: the server learns a sum and none of its terms, though clients may vanish at any point.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS 2017), with the sparse
graph of Bell et al., "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead" (CCS 2020), and masks
modulo 2^w. Client i sends

    y_i = x_i + PRG(b_i) + sum over neighbours j > i of PRG(k_ij) - sum over neighbours j < i of PRG(k_ij)   (mod 2^w)

where k_ij comes from a key agreement and b_i is its own seed. Pairwise masks cancel in the sum. The server takes away
the masks of b_i for clients whose y_i it has, and the pairwise masks of those who vanished, from shares of b_i or of
i's mask key that the others hold: any `need` of them rebuild a secret, fewer learn nothing. For no client may it have
both. Everything here is arithmetic on bytes and arrays; who sends what when is in engines/secure.py.

Own sharing, over the integers modulo the first prime above 2^256, because its coefficients must come from the caller's
source and because a server that opens 64 clients' secrets does so in milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from vitrail.errors import Malformed
from vitrail.privacy import primitives
from vitrail.privacy.modular import Words
from vitrail.privacy.noise import Source
from vitrail.rng import Rng
from vitrail.wire.message import digest

PRIME = 2**256 + 297
SECRET, SHARE, SHOWN, LETTER = 32, 33, 80, 82  # bytes: a letter is two shares, sealed
DENSE = 64  # up to so many clients everyone is everyone's neighbour


@dataclass(frozen=True)
class Graph:
    """Who masks with whom, and who holds shares of whose secrets: known to all from the list of names.

    Up to 64 clients: everyone. Above: a ring in an order drawn from the run, the round and the names, each
    client tied to the k nearest, k = 4 log2 K + 16. With that, and a majority of neighbours needed to rebuild a
    secret, a fifth of a thousand clients that vanish stop a round about once in 10^4 times, and a fifth that collude
    with the server hold the majority around any client as rarely (tails of the hypergeometric law).
    """

    run: bytes
    round: int
    names: tuple[str, ...]
    threshold: int  # so many clients must remain, as everyone knows before the first message

    @cached_property
    def _ring(self) -> list[int]:
        key = ("secure aggregation", self.run, self.round, digest(*self.names))
        return [int(i) for i in Rng(key).numpy().permutation(len(self.names))]

    @cached_property
    def _place(self) -> dict[int, int]:
        return {i: at for at, i in enumerate(self._ring)}

    @property
    def dense(self) -> bool:
        """Whether everyone is everyone's neighbour."""
        return len(self.names) <= DENSE

    def holders(self, i: int) -> list[int]:
        """Who holds shares of i's secrets: its neighbours and itself, in order."""
        n = len(self.names)
        if self.dense:
            return list(range(n))
        half = degree(n) // 2
        return sorted(self._ring[(self._place[i] + step) % n] for step in range(-half, half + 1))

    def neighbours(self, i: int) -> list[int]:
        """With whom i masks; it is mutual."""
        return [j for j in self.holders(i) if j != i]

    @property
    def need(self) -> int:
        """How many shares rebuild a secret: always more than half, so that two halves cannot be told two stories."""
        return self.threshold if self.dense else degree(len(self.names)) // 2 + 1


def degree(clients: int) -> int:
    """Neighbours of a client in a sparse graph, an even number.

    >>> degree(100), degree(1000)
    (42, 56)
    """
    return 2 * round(2 * math.log2(clients) + 8)


@dataclass(frozen=True)
class Shown:
    """What a client shows of its secrets: public keys for letters and for masks, and a commitment to its seed."""

    letters: bytes
    masks: bytes
    seed: bytes

    def pack(self) -> bytes:
        """As it travels."""
        return self.letters + self.masks + self.seed

    @staticmethod
    def read(raw: bytes) -> Shown:
        """Read it."""
        if len(raw) != SHOWN:
            raise Malformed(f"keys of {len(raw)} bytes; they have {SHOWN}")
        return Shown(raw[:SECRET], raw[SECRET : 2 * SECRET], raw[2 * SECRET :])

    def check(self) -> Shown:
        """Refuse keys that would let everybody know what they agree on."""
        for key in (self.letters, self.masks):
            primitives.agree(bytes(SECRET), key, b"a trial")
        return self


def sign(i: int, j: int) -> int:
    """Whether client i adds the mask it has with j, or takes it away."""
    return 1 if i < j else -1


def pair(graph: Graph, i: int, j: int) -> bytes:
    """Names the mask of two clients, for both the same."""
    return digest("mask", graph.run, str(graph.round), graph.names[min(i, j)], graph.names[max(i, j)])


def letter(graph: Graph, sender: int, to: int) -> bytes:
    """Names the sealed shares from one client to another."""
    return digest("shares", graph.run, str(graph.round), graph.names[sender], graph.names[to])


def commitment(seed: bytes) -> bytes:
    """Shown before the seed, so that a rebuilt one can be checked."""
    return digest("own mask", seed)


def own_key(seed: bytes) -> bytes:
    """The key of a client's own mask."""
    key: bytes = primitives.derive(seed, b"own mask")
    return key


def add_mask(vector: Mapping[str, Words], key: bytes, sign: int) -> None:
    """Add a key's stream to all parts in place, or take it away."""
    stream = primitives.key_stream(key)
    for name in sorted(vector):
        a = vector[name]
        mask = np.frombuffer(stream.update(bytes(a.nbytes)), a.dtype)
        np.add(a, mask, out=a) if sign > 0 else np.subtract(a, mask, out=a)


def split(source: Source, secret: bytes, need: int, points: Sequence[int]) -> list[bytes]:
    """A share for each point, any `need` of which give the secret back (Shamir 1979)."""
    coefficients = [int.from_bytes(secret, "little")]
    coefficients += [int.from_bytes(source(48), "little") % PRIME for _ in range(need - 1)]  # even to 2^-127
    shares = []
    for x in points:
        value = 0
        for c in reversed(coefficients):
            value = (value * x + c) % PRIME
        shares.append(value.to_bytes(SHARE, "little"))
    return shares


def join(shares: Mapping[int, bytes]) -> bytes:
    """The secret from the shares at as many points as it was split for."""
    weights = _at_zero(tuple(shares))
    value = sum(w * number(share) for w, share in zip(weights, shares.values(), strict=True)) % PRIME
    if value >> (8 * SECRET):
        raise Malformed("the shares do not belong together")
    return value.to_bytes(SECRET, "little")


def number(share: bytes) -> int:
    """A share as the number it is, or a refusal."""
    value = int.from_bytes(share, "little")
    if len(share) != SHARE or value >= PRIME:
        raise Malformed(f"{share[:4].hex()}... of {len(share)} bytes is no share of a secret")
    return value


@lru_cache(maxsize=256)
def _at_zero(points: tuple[int, ...]) -> list[int]:
    """Lagrange's weights of a polynomial's values at these points for its value at 0."""
    weights = []
    for x in points:
        above, below = 1, 1
        for other in points:
            if other != x:
                above, below = above * -other % PRIME, below * (x - other) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights
