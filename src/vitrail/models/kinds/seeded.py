"""What the kinds `masked` and `ensemble` share: a network whose frozen random weights follow from a seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.models.kinds import REMEDY
from vitrail.models.limits import (
    ACTIVATION_PER_BYTE,
    FREE,
    STATISTICS_BATCH,
    WEIGHTS_PER_BYTE,
    check_integer,
    largest_activation,
    shown,
)
from vitrail.nets.generators import GENERATORS, build_generator
from vitrail.utils.errors import Malformed, nearest
from vitrail.utils.rng import Rng

RECOMPUTED = "not stored: computed when loading, from noise that a seed gives"


def seeded_network(tree: Mapping[str, Any]) -> Any:
    """Build the generator that a tree names; its weights are not drawn yet.

    Raises:
        Malformed: If no generator of this name is registered.
    """
    name = tree["generator"]
    if not isinstance(name, str) or name not in GENERATORS:
        near = nearest(name[:60], GENERATORS) if isinstance(name, str) else "expected text"
        raise Malformed(f"its generator {shown(name)} is not registered; {near}. If it is of a plugin, {REMEDY}")
    return build_generator(name, tuple(tree["shape"]), tree["classes"], tree["width"])


def fewest_coded_bytes(tree: Mapping[str, Any]) -> int:
    """Return the fewest bytes of a coded mask, or of coded scores, with which the network of a tree is loaded."""
    with torch.device("meta"):
        net = seeded_network(tree)
    weights = 4 * sum(p.numel() for p in net.parameters())
    activation = largest_activation(net, tree["shape"][1], tree["classes"])
    return int(max(-(-(weights - FREE) // WEIGHTS_PER_BYTE), -(-(activation - FREE) // ACTIVATION_PER_BYTE), 0))


def check_seeded(tree: dict[str, Any], name: str, bits: int) -> int:
    """Check a seed and coded symbols of at most `bits` bits per weight; returns the bytes of the symbols."""
    width, coded = tree["width"], tree[name]
    if isinstance(width, bool) or not isinstance(width, int | float) or not 0 < width <= 8:
        raise Malformed(f"width = {shown(width)}; expected a number above 0 and at most 8")
    check_integer(tree, "seed")
    if not isinstance(coded, np.ndarray) or coded.dtype != np.uint8 or coded.ndim != 1:
        raise Malformed(f"its {name} is not a row of bytes")
    weights = sum(p.numel() for p in seeded_network(tree).parameters())
    least, most = fewest_coded_bytes(tree), -(-bits * weights // 8) + 2**18  # with a table of symbols and their counts
    if not least <= len(coded) <= most:
        raise Malformed(
            f"a {name} of {len(coded):,} bytes for a network of {weights:,} weights; expected {least:,} to {most:,} "
            "bytes: the network is too large for it, or too small"
        )
    return int(coded.nbytes)


def statistics_inputs(net: nn.Module, seed: int, classes: int) -> list[tuple[Tensor, ...]]:
    """Return inputs from which BatchNorm's statistics are computed; the same for everyone who has the seed."""
    width: Any = net.z
    draw = Rng((seed,)).child("batch statistics").torch()
    batches: list[tuple[Tensor, ...]] = []
    for _ in range(8):
        z = torch.randn(STATISTICS_BATCH, width, generator=draw)
        y = torch.randint(classes, (STATISTICS_BATCH,), generator=draw) if classes else None
        batches.append((z,) if y is None else (z, y))
    return batches
