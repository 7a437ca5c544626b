"""Masks that remain in a sum, rebuilt from shares of the clients' secrets.

Bonawitz et al. (CCS 2017), round 4: a client whose masked reply arrived leaves its own mask in the sum, a client that
dropped out leaves its pairwise masks with those. Every rebuilt secret is checked against what its owner advertised.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from vitrail.engines.secagg import shares as secagg
from vitrail.engines.secagg.shares import AdvertisedKeys, Group
from vitrail.utils import crypto
from vitrail.utils.errors import Malformed


def remaining_masks(
    group: Group,
    members: set[str],
    alive: set[str],
    keys: Mapping[str, AdvertisedKeys],
    shares: Mapping[int, Mapping[int, bytes]],
) -> Iterator[tuple[bytes, int]]:
    """Yield the masks that remain in the sum, each with the sign that removes it.

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
    wrong_senders: list[int] = []
    for i, name in enumerate(names):
        if name not in members:
            continue
        if name in alive:
            seed = _rebuild(group, name, shares[i], wrong_senders, keys[name].seed, secagg.commitment)
            yield secagg.own_key(seed), -1
            continue
        private = _rebuild(group, name, shares[i], wrong_senders, keys[name].masks, crypto.public)
        for j, other in enumerate(names):
            if other in alive:
                yield crypto.agree(private, keys[other].masks, secagg.pair(group, i, j)), -secagg.sign(j, i)


def _rebuild(
    group: Group,
    name: str,
    shares: Mapping[int, bytes],
    wrong_senders: list[int],
    advertised: bytes,
    advertise: Callable[[bytes], bytes],
) -> bytes:
    """Rebuild a secret that matches what its owner advertised, also if one of the shares is wrong.

    The sender of a wrong share is added to `wrong_senders`; its shares of the next secret are not tried first.
    """
    need = group.threshold
    if len(shares) < need:
        raise Malformed(f"{len(shares)} clients remain that have shares of a secret of {name}, {need} are needed")
    for wrong in (*wrong_senders[-1:], None, *list(shares)[:need]):
        some = [(j + 1, share) for j, share in shares.items() if j != wrong][:need]
        with contextlib.suppress(Malformed):
            secret = secagg.join(dict(some))
            if len(some) == need and advertise(secret) == advertised:
                wrong_senders += [] if wrong is None else [wrong]
                return secret
    raise Malformed(f"the shares of a secret of {name} do not match it: a client sent wrong shares")
