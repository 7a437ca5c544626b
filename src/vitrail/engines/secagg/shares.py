"""Arithmetic of secure aggregation: masks, advertised keys, secret sharing. Messages are in client.py and server.py.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS 2017), modulo 2^w.
"""

# Client i sends
#
#     y_i = x_i + PRG(b_i) + sum over clients j > i of PRG(k_ij) - sum over clients j < i of PRG(k_ij)   (mod 2^w)
#
# where k_ij comes from a key agreement and b_i is its own seed. Pairwise masks cancel in the sum. The server removes
# the masks of b_i for clients whose y_i arrived, and the pairwise masks of those that dropped out, using shares of b_i
# or of i's mask key that the other clients have: any `threshold` shares rebuild a secret, fewer reveal nothing about
# it. The server must never get both secrets of one client.
#
# Secret sharing is implemented here, over the integers modulo the first prime above 2^256, because its coefficients
# must come from the caller's source, and because a server must rebuild 64 clients' secrets in milliseconds.

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from vitrail.engines.secagg.messages import Words
from vitrail.privacy.noise import Source
from vitrail.utils import crypto
from vitrail.utils.errors import Malformed
from vitrail.utils.keys import SIGNATURE, Key, signed_by
from vitrail.wire.message import digest

PRIME = 2**256 + 297
SECRET, SHARE, LETTER = 32, 33, 82  # bytes; a letter is two encrypted shares
ADVERTISED = 80 + 32 + SIGNATURE


@dataclass(frozen=True)
class Group:
    """The clients of one round, in an order that all of them know; every pair of clients has a mask.

    Every client has a share of every other's secrets, and `threshold` shares rebuild one: no set of fewer colluding
    clients can rebuild any. The sparse graph of Bell et al. (CCS 2020) is cheaper, but there a majority of a client's
    few neighbours suffices: of 100 clients with 42 neighbours each, 50 colluding clients unmask a given client with
    probability 0.45; and the neighbours follow from names and a run id that the server chooses.
    """

    run: bytes
    round: int
    names: tuple[str, ...]
    threshold: int  # clients that must remain; known to all before the first message


@dataclass(frozen=True)
class AdvertisedKeys:
    """What a client advertises of its secrets.

    Args:
        letters: Public key for letters between clients.
        masks: Public key for pairwise masks.
        seed: Commitment to the seed of its own mask.
        signer: Public key that the client is known by.
        signature: Signature over these by the signer.
    """

    letters: bytes
    masks: bytes
    seed: bytes
    signer: bytes
    signature: bytes

    @staticmethod
    def make(run: bytes, round_: int, name: str, letters: bytes, masks: bytes, seed: bytes, key: Key) -> AdvertisedKeys:
        """Advertise a client's secrets."""
        keys = crypto.public(letters), crypto.public(masks), commitment(seed)
        return AdvertisedKeys(*keys, key.public, key.sign(*signed_keys(run, round_, name, b"".join(keys))))

    def pack(self) -> bytes:
        """Encode to bytes."""
        return self.letters + self.masks + self.seed + self.signer + self.signature

    @staticmethod
    def read(raw: bytes) -> AdvertisedKeys:
        """Decode the bytes of `pack`."""
        if len(raw) != ADVERTISED:
            raise Malformed(f"keys of {len(raw)} bytes; {ADVERTISED} are expected")
        return AdvertisedKeys(raw[:32], raw[32:64], raw[64:80], raw[80:112], raw[112:])

    def check(self, run: bytes, round_: int, name: str) -> AdvertisedKeys:
        """Raise Malformed unless the keys are signed for this client in this round."""
        keys = self.letters + self.masks + self.seed
        if not signed_by(self.signer, self.signature, *signed_keys(run, round_, name, keys)):
            raise Malformed(f"the keys of {name!r} are not signed for this round by its key {self.signer.hex()[:16]}")
        return self


def signed_keys(run: bytes, round_: int, name: str, keys: bytes) -> tuple[bytes, ...]:
    """Return what a client signs when it advertises its keys."""
    return b"secagg keys", run, str(round_).encode(), name.encode(), keys


def view(group: Group, keys: bytes, alive: Sequence[int]) -> tuple[bytes, ...]:
    """Return what a client signs before it sends shares: the clients, their keys, and whose masked replies arrived."""
    numbers = f"{group.round} {group.threshold}".encode()
    return b"secagg view", group.run, numbers, *(name.encode() for name in group.names), keys, bytes(alive)


def sign(i: int, j: int) -> int:
    """Return the sign with which client i uses its mask with client j."""
    return 1 if i < j else -1


def pair(group: Group, i: int, j: int) -> bytes:
    """Return the purpose of the mask of two clients, equal for both."""
    return digest("mask", group.run, str(group.round), group.names[min(i, j)], group.names[max(i, j)])


def letter(group: Group, sender: int, to: int) -> bytes:
    """Return the purpose of the encrypted shares from one client to another."""
    return digest("shares", group.run, str(group.round), group.names[sender], group.names[to])


def commitment(seed: bytes) -> bytes:
    """Return a commitment to a seed, with which a rebuilt seed is checked."""
    return digest("own mask", seed)


def own_key(seed: bytes) -> bytes:
    """Return the key of a client's own mask."""
    return crypto.derive(seed, b"own mask")


def add_mask(vector: Mapping[str, Words], key: bytes, sign: int) -> None:
    """Add a key's stream to all parts in place, or subtract it."""
    stream = crypto.key_stream(key)
    for name in sorted(vector):
        a = vector[name]
        mask = np.frombuffer(stream.update(bytes(a.nbytes)), a.dtype)
        np.add(a, mask, out=a) if sign > 0 else np.subtract(a, mask, out=a)


def split(source: Source, secret: bytes, need: int, points: Sequence[int]) -> list[bytes]:
    """Return one share per point; any `need` of them rebuild the secret (Shamir 1979)."""
    coefficients = [int.from_bytes(secret, "little")]
    coefficients += [int.from_bytes(source(48), "little") % PRIME for _ in range(need - 1)]  # uniform to 2^-127
    shares = []
    for x in points:
        value = 0
        for c in reversed(coefficients):
            value = (value * x + c) % PRIME
        shares.append(value.to_bytes(SHARE, "little"))
    return shares


def join(shares: Mapping[int, bytes]) -> bytes:
    """Rebuild a secret from as many shares as it was split for.

    Raises:
        Malformed: The shares are not of one secret.
    """
    weights = _at_zero(tuple(shares))
    value = sum(w * number(share) for w, share in zip(weights, shares.values(), strict=True)) % PRIME
    if value >> (8 * SECRET):
        raise Malformed("the shares do not belong together")
    return value.to_bytes(SECRET, "little")


def number(share: bytes) -> int:
    """Decode a share to an integer; raise Malformed if it is none."""
    value = int.from_bytes(share, "little")
    if len(share) != SHARE or value >= PRIME:
        raise Malformed(f"{share[:4].hex()}... of {len(share)} bytes is not a share of a secret")
    return value


@lru_cache(maxsize=256)
def _at_zero(points: tuple[int, ...]) -> list[int]:
    """Lagrange weights of a polynomial's values at these points for its value at 0."""
    weights = []
    for x in points:
        others = [other for other in points if other != x]
        below = math.prod(other - x for other in others)
        weights.append(math.prod(others) * pow(below, -1, PRIME) % PRIME)
    return weights


def remaining_masks(
    group: Group,
    members: set[str],
    alive: set[str],
    keys: Mapping[str, AdvertisedKeys],
    shares: Mapping[int, Mapping[int, bytes]],
) -> Iterator[tuple[bytes, int]]:
    """Yield the masks that remain in the sum, each with the sign that removes it.

    Bonawitz et al., round 4: a client whose masked reply arrived leaves its own mask in the sum, a client that dropped
    out its pairwise masks with those. Every rebuilt secret is checked against what its owner advertised.

    Args:
        group: The clients of the round.
        members: Clients that shared their secrets.
        alive: Clients whose masked replies arrived.
        keys: Advertised keys by client.
        shares: By position of the client, shares of one of its secrets by position of the sender.

    Raises:
        Malformed: A secret cannot be rebuilt.
    """
    names = group.names
    need = group.threshold
    wrong_senders: list[int] = []  # their shares of the next secret are not tried first

    def rebuild(i: int, advertised: bytes, advertise: Callable[[bytes], bytes]) -> bytes:
        """Rebuild a secret of client i that matches what it advertised, also if one of the shares is wrong."""
        if len(shares[i]) < need:
            raise Malformed(
                f"{len(shares[i])} clients remain that have shares of a secret of {names[i]}, {need} are needed"
            )
        for wrong in (*wrong_senders[-1:], None, *list(shares[i])[:need]):
            some = [(j + 1, share) for j, share in shares[i].items() if j != wrong][:need]
            with suppress(Malformed):
                secret = join(dict(some))
                if len(some) == need and advertise(secret) == advertised:
                    wrong_senders.extend([] if wrong is None else [wrong])
                    return secret
        raise Malformed(f"the shares of a secret of {names[i]} do not match it: a client sent wrong shares")

    for i, name in enumerate(names):
        if name in members and name in alive:
            yield own_key(rebuild(i, keys[name].seed, commitment)), -1
        elif name in members:
            private = rebuild(i, keys[name].masks, crypto.public)
            for j, other in enumerate(names):
                if other in alive:
                    yield crypto.agree(private, keys[other].masks, pair(group, i, j)), -sign(j, i)
