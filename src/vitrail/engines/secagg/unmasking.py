"""What masks are left in a sum, once enough clients have said what they hold of those who sent and who vanished.

Bonawitz et al. (CCS 2017), round 4: of a client whose numbers arrived its own mask is left, of one that vanished the
masks it has with those whose numbers arrived. Every rebuilt secret is compared with what its owner showed beforehand.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from vitrail.engines.secagg import primitives
from vitrail.engines.secagg import shares as secagg
from vitrail.engines.secagg.shares import Group, Share
from vitrail.utils.errors import Malformed


def left_in_sum(
    group: Group,
    members: set[str],
    alive: set[str],
    keys: Mapping[str, Share],
    shares: Mapping[int, Mapping[int, bytes]],
) -> Iterator[tuple[bytes, int]]:
    """The masks that are left in the sum, each with the sign that takes it away."""
    names = group.names
    liars: list[int] = []
    for i, name in enumerate(names):
        if name not in members:
            continue
        if name in alive:
            seed = _rebuilt(group, name, shares[i], liars, keys[name].seed, secagg.commitment)
            yield secagg.own_key(seed), -1
            continue
        private = _rebuilt(group, name, shares[i], liars, keys[name].masks, primitives.public)
        for j, other in enumerate(names):
            if other in alive:
                yield primitives.agree(private, keys[other].masks, secagg.pair(group, i, j)), -secagg.sign(j, i)


def _rebuilt(
    group: Group,
    name: str,
    shares: Mapping[int, bytes],
    liars: list[int],
    shown: bytes,
    show: Callable[[bytes], bytes],
) -> bytes:
    """Rebuild a secret that fits what its owner has shown; one wrong share may be among them.

    A client whose shares were wrong is added to `liars`, and its shares of the next secret are not tried first.
    """
    need = group.threshold
    if len(shares) < need:
        raise Malformed(f"{len(shares)} clients remain that can open the masks of {name}, {need} are needed")
    for wrong in (*liars[-1:], None, *list(shares)[:need]):
        some = [(j + 1, share) for j, share in shares.items() if j != wrong][:need]
        with contextlib.suppress(Malformed):
            secret = secagg.join(dict(some))
            if len(some) == need and show(secret) == shown:
                liars += [] if wrong is None else [wrong]
                return secret
    raise Malformed(f"the shares of a secret of {name} do not fit it: a client lied")
