"""Kinds `masked`, `ensemble` and `dense`: a registered generator, built from its name and a seed.

BatchNorm's statistics are in none of these files: they are computed when loading, from noise that the seed gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.models import limits
from vitrail.models.kinds import REMEDY, ModelKind
from vitrail.nets.flat import on_meta
from vitrail.nets.generators import GENERATORS, build_generator
from vitrail.nets.masked import Ensemble, Masked, decode_mask, recalibrate
from vitrail.utils.errors import Malformed, nearest
from vitrail.utils.rng import Rng
from vitrail.wire import scores
from vitrail.wire.range_coder import decode_values

RECOMPUTED = "not stored: computed when loading, from noise that a seed gives"


def seeded_network(tree: Mapping[str, Any]) -> Any:
    """Build the generator that a tree names; its weights are not drawn yet.

    Raises:
        Malformed: If no generator of this name is registered, or its width is out of range.
    """
    name, width = tree["generator"], tree["width"]
    if isinstance(width, bool) or not isinstance(width, int | float) or not 0 < width <= 8:
        raise Malformed(f"width = {limits.shown(width)}; expected a number above 0 and at most 8")
    if not isinstance(name, str) or name not in GENERATORS:
        near = nearest(name[:60], GENERATORS) if isinstance(name, str) else "expected text"
        raise Malformed(f"its generator {limits.shown(name)} is not registered; {near}. If it is of a plugin, {REMEDY}")
    return build_generator(name, tuple(tree["shape"]), tree["classes"], tree["width"])


def fewest_coded_bytes(tree: Mapping[str, Any]) -> int:
    """Return the fewest bytes of a coded mask, or of coded scores, with which the network of a tree is loaded."""
    net = on_meta(seeded_network, tree)
    weights = 4 * sum(p.numel() for p in net.parameters())
    activation = limits.largest_activation(net, tree["shape"][1], tree["classes"])
    needed = (weights, limits.WEIGHTS_PER_BYTE), (activation, limits.ACTIVATION_PER_BYTE)
    return max(0, *(-(-(size - limits.FREE) // per_byte) for size, per_byte in needed))


def statistics_inputs(net: Any, seed: int, classes: int) -> list[tuple[Tensor, ...]]:
    """Return inputs from which BatchNorm's statistics are computed; the same for everyone who has the seed."""
    draw = Rng((seed,)).child("batch statistics").torch()
    batches: list[tuple[Tensor, ...]] = []
    for _ in range(8):
        z = torch.randn(limits.STATISTICS_BATCH, net.z, generator=draw)
        y = torch.randint(classes, (limits.STATISTICS_BATCH,), generator=draw) if classes else None
        batches.append((z,) if y is None else (z, y))
    return batches


class SeededKind(ModelKind):
    """A seed, and symbols of at most `coded_bits` bits per weight in `coded_part`."""

    statistics = RECOMPUTED
    coded_bits: ClassVar[int]

    @classmethod
    def check(cls, tree: dict[str, Any]) -> int:
        name = cls.coded_part
        coded = tree[name]
        limits.check_integer(tree, "seed")
        if not isinstance(coded, np.ndarray) or coded.dtype != np.uint8 or coded.ndim != 1:
            raise Malformed(f"its {name} is not a row of bytes")
        weights = sum(p.numel() for p in seeded_network(tree).parameters())
        least = fewest_coded_bytes(tree)
        most = -(-cls.coded_bits * weights // 8) + 2**18  # with a table of symbols and their counts
        if not least <= len(coded) <= most:
            raise Malformed(
                f"a {name} of {len(coded):,} bytes for a network of {weights:,} weights; expected {least:,} to "
                f"{most:,} bytes: the network is too large for it, or too small"
            )
        return int(coded.nbytes)


class MaskedKind(SeededKind):
    """Frozen random signs and a mask; BatchNorm's statistics are computed from noise."""

    meaning = "frozen random signs from a seed, and one bit per weight that keeps it or not"
    coded_part, coded_bits = "mask", 1

    @classmethod
    def build(cls, tree: dict[str, Any]) -> nn.Module:
        masked = Masked(seeded_network(tree), tree["seed"])
        net = masked.fix(torch.from_numpy(decode_mask(masked, tree["mask"]).astype(np.float32)))
        return recalibrate(net, statistics_inputs(masked, tree["seed"], tree["classes"]))

    @classmethod
    def mask(cls, net: nn.Module) -> dict[str, Any]:
        weights = list(net.parameters())
        elements, ones = sum(w.numel() for w in weights), sum(int(w.count_nonzero()) for w in weights)
        return {"elements": elements, "ones": ones, "share": ones / elements}


class EnsembleKind(SeededKind):
    """Frozen random signs and scores; a new mask M ~ Bern(θ) for every batch."""

    meaning = "frozen random signs from a seed, and a probability per weight: a new mask for every batch"
    coded_part, coded_bits = "scores", 16
    onnx_refusal = (
        "an ensemble draws a new mask for every batch, and an ONNX file has one network; "
        "export the run's model.safetensors, which is one mask"
    )

    @classmethod
    def build(cls, tree: dict[str, Any]) -> nn.Module:
        net = seeded_network(tree)
        s = decode_values(tree["scores"], sum(p.numel() for p in net.parameters()))
        theta = torch.from_numpy(scores.theta(s).astype(np.float32))
        return Ensemble(net, tree["seed"], theta, statistics_inputs(net, tree["seed"], tree["classes"]))

    @classmethod
    def largest_part(cls, net: nn.Module, stored: int) -> tuple[nn.Module, int]:
        return cast(Ensemble, net).masked.net, stored

    @classmethod
    def mask(cls, net: nn.Module) -> dict[str, Any]:
        theta = cast(Ensemble, net).theta
        return {"elements": theta.numel(), "share": float(theta.double().mean())}


class DenseKind(ModelKind):
    """Weights by name; BatchNorm's statistics are computed from noise."""

    meaning = "trained weights, as float16"
    statistics = RECOMPUTED

    @classmethod
    def network(cls, tree: dict[str, Any]) -> nn.Module:
        return seeded_network(tree)

    @classmethod
    def check(cls, tree: dict[str, Any]) -> int:
        limits.check_integer(tree, "seed")
        net = cls.network(tree)
        stored = limits.check_tensors(dict(net.named_parameters()), tree["weights"])
        limits.check_activation(net, tree["shape"][1], tree["classes"], stored)
        return stored

    @classmethod
    def build(cls, tree: dict[str, Any]) -> nn.Module:
        net = cls.network(tree).requires_grad_(False)  # with gradients, other kernels than ONNX has would run
        net.load_state_dict(tree["weights"], strict=False)  # without BatchNorm's statistics
        return recalibrate(net, statistics_inputs(net, tree["seed"], tree["classes"]))
