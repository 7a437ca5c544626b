"""Secure aggregation: the server learns a sum and none of its terms, though clients may vanish at any point.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS 2017), with masks modulo
2^w. Client i sends

    y_i = x_i + PRG(b_i) + sum over clients j > i of PRG(k_ij) - sum over clients j < i of PRG(k_ij)   (mod 2^w)

where k_ij comes from a key agreement and b_i is its own seed. Pairwise masks cancel in the sum. The server takes away
the masks of b_i for clients whose y_i it has, and the pairwise masks of those who vanished, from shares of b_i or of
i's mask key that the others hold: any `threshold` of them rebuild a secret, fewer learn nothing. For no client may it
have both. Everything here is arithmetic on bytes and arrays; who sends what when is in engines/secagg/server.py.

Own sharing, over the integers modulo the first prime above 2^256, because its coefficients must come from the caller's
source and because a server that opens 64 clients' secrets does so in milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from vitrail.engines.secagg import primitives
from vitrail.engines.secagg.integers import Words
from vitrail.privacy.noise import Source
from vitrail.utils.errors import Malformed
from vitrail.utils.keys import SIGNATURE, Key, signed_by
from vitrail.wire.message import digest

PRIME = 2**256 + 297
SECRET, SHARE, LETTER = 32, 33, 82  # bytes: a letter is two shares, sealed
SHOWN = 80 + 32 + SIGNATURE


@dataclass(frozen=True)
class Group:
    """The clients of one round, in the order that all of them know: everyone masks with everyone.

    Every client holds a share of every other's secrets, and `threshold` shares rebuild one. Fewer colluding clients
    cannot open anybody, whoever they are. The sparse graph of Bell et al. (CCS 2020) is cheaper, but there a client is
    opened by a majority of its few neighbours: 100 clients with 42 neighbours each, 50 of them colluding, open a given
    client with probability 0.45; and who is whose neighbour follows from names and a run id that the server chooses.
    """

    run: bytes
    round: int
    names: tuple[str, ...]
    threshold: int  # so many clients must remain, as everyone knows before the first message


@dataclass(frozen=True)
class Share:
    """What a client shows of its secrets: public keys for letters and for masks, and a commitment to its seed.

    `signer` is the public key that it is known by, and `signature` is by that key.
    """

    letters: bytes
    masks: bytes
    seed: bytes
    signer: bytes
    signature: bytes

    @staticmethod
    def make(run: bytes, round_: int, name: str, letters: bytes, masks: bytes, seed: bytes, key: Key) -> Share:
        """From a client's secrets."""
        shown = primitives.public(letters), primitives.public(masks), commitment(seed)
        return Share(*shown, key.public, key.sign(*_shows(run, round_, name, b"".join(shown))))

    def pack(self) -> bytes:
        """As it travels."""
        return self.letters + self.masks + self.seed + self.signer + self.signature

    @staticmethod
    def read(raw: bytes) -> Share:
        """Read it."""
        if len(raw) != SHOWN:
            raise Malformed(f"keys of {len(raw)} bytes; they have {SHOWN}")
        return Share(raw[:32], raw[32:64], raw[64:80], raw[80:112], raw[112:])

    def check(self, run: bytes, round_: int, name: str) -> Share:
        """Refuse keys that were not signed for this client in this round."""
        shown = self.letters + self.masks + self.seed
        if not signed_by(self.signer, self.signature, *_shows(run, round_, name, shown)):
            raise Malformed(f"the keys of {name!r} are not signed for this round by its key {self.signer.hex()[:16]}")
        return self

    def check_points(self) -> Share:
        """Refuse keys that would let everybody know what they agree on; clients notice when they use one."""
        for key in (self.letters, self.masks):
            primitives.agree(bytes(SECRET), key, b"a trial")
        return self


def _shows(run: bytes, round_: int, name: str, shown: bytes) -> tuple[bytes, ...]:
    """What a client signs when it shows its keys."""
    return b"secagg keys", run, str(round_).encode(), name.encode(), shown


def view(group: Group, keys: bytes, alive: Sequence[int]) -> tuple[bytes, ...]:
    """What a client signs before it opens anything: who takes part with which keys, and whose numbers arrived."""
    numbers = f"{group.round} {group.threshold}".encode()
    return b"secagg view", group.run, numbers, *(name.encode() for name in group.names), keys, bytes(alive)


def sign(i: int, j: int) -> int:
    """Whether client i adds the mask it has with j, or takes it away."""
    return 1 if i < j else -1


def pair(group: Group, i: int, j: int) -> bytes:
    """Names the mask of two clients, for both the same."""
    return digest("mask", group.run, str(group.round), group.names[min(i, j)], group.names[max(i, j)])


def letter(group: Group, sender: int, to: int) -> bytes:
    """Names the sealed shares from one client to another."""
    return digest("shares", group.run, str(group.round), group.names[sender], group.names[to])


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
        others = [other for other in points if other != x]
        below = math.prod(other - x for other in others)
        weights.append(math.prod(others) * pow(below, -1, PRIME) % PRIME)
    return weights
