"""What masks are left in a sum, once enough clients have said what they hold of those who sent and who vanished.

Bonawitz et al. (CCS 2017), round 4: of a client whose numbers arrived its own mask is left, of one that vanished the
masks it has with those whose numbers arrived. Every rebuilt secret is compared with what its owner showed beforehand.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from vitrail.errors import Malformed
from vitrail.privacy import primitives, secagg
from vitrail.privacy.secagg import Graph, Shown


def left_in_sum(
    graph: Graph,
    members: set[str],
    alive: set[str],
    keys: Mapping[str, Shown],
    shares: Mapping[int, Mapping[int, bytes]],
) -> Iterator[tuple[bytes, int]]:
    """The masks that are left in the sum, each with the sign that takes it away."""
    names = graph.names
    for i, name in enumerate(names):
        if name not in members:
            continue
        if name in alive:
            seed = _rebuilt(graph, name, shares[i], keys[name].seed, secagg.commitment)
            yield secagg.own_key(seed), -1
            continue
        private = _rebuilt(graph, name, shares[i], keys[name].masks, primitives.public)
        for j in graph.neighbours(i):
            if names[j] in alive:
                yield primitives.agree(private, keys[names[j]].masks, secagg.pair(graph, i, j)), -secagg.sign(j, i)


def _rebuilt(
    graph: Graph, name: str, shares: Mapping[int, bytes], shown: bytes, show: Callable[[bytes], bytes]
) -> bytes:
    """A secret that fits what its owner has shown, from enough of its shares; one wrong share may be among them."""
    if len(shares) < graph.need:
        raise Malformed(f"{len(shares)} clients remain that can open the masks of {name}, {graph.need} are needed")
    for wrong in (None, *list(shares)[: graph.need]):
        some = [(j + 1, share) for j, share in shares.items() if j != wrong][: graph.need]
        with contextlib.suppress(Malformed):
            secret = secagg.join(dict(some))
            if len(some) == graph.need and show(secret) == shown:
                return secret
    raise Malformed(f"the shares of a secret of {name} do not fit it: a client lied")
