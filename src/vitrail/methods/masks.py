"""Masks over a frozen random generator: the parts that `prism` and `moments` share.

Both build the network W from a seed, train scores s with Adam, and export the seed and a coded mask.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.methods.base import Model, Task
from vitrail.models.kinds.seeded import fewest_coded_bytes
from vitrail.nets import generators
from vitrail.nets.masked import Masked
from vitrail.nets.supermask import encode_mask
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire import scores
from vitrail.wire.range_coder import encode_values
from vitrail.wire.scores import Scores


class MaskMethod(Protocol):
    """The settings that the functions of this module read."""

    @property
    def task(self) -> Task: ...
    @property
    def generator(self) -> str: ...
    @property
    def width(self) -> float: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def lr(self) -> float: ...
    @property
    def schedule(self) -> str: ...
    @property
    def final_mask(self) -> str: ...


def layer_sizes(m: MaskMethod) -> tuple[int, ...]:
    """Return the number of mask elements of each layer."""
    with torch.device("meta"):
        net = generators.build_generator(m.generator, m.task.shape, m.task.classes, m.width)
    return tuple(p.numel() for p in net.parameters())


def build_network(m: MaskMethod, seed: int) -> Masked:
    """Return the frozen network W; every party builds the same one from the seed."""
    net = generators.build_generator(m.generator, m.task.shape, m.task.classes, m.width)
    return Masked(net, seed).to(m.task.device)


def learning_rate(m: MaskMethod, t: int) -> float:
    """Return the learning rate of round t."""
    if m.schedule == "constant":
        return m.lr
    return m.lr * (0.5 + 0.5 * math.cos(math.pi * t / m.task.rounds))


def score_optimizer(m: MaskMethod, s: Tensor, t: int, state: State) -> torch.optim.Adam:
    """Return the Adam of the scores for round t; `state` is its state after the last round, or empty."""
    optimizer = torch.optim.Adam([s], lr=learning_rate(m, t), betas=(0.5, 0.999), fused=True)
    if state:
        optimizer.state[s] = {k: v.clone() for k, v in state.items()}
    return optimizer


def sample_inputs(m: MaskMethod, i: int, z: int, classes: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the generator's inputs of iteration i: noise of z dimensions, and labels that cycle through `classes`."""
    noise = torch.randn(m.batch_size, z, generator=draw).to(m.task.device)
    at = torch.arange(m.batch_size, device=m.task.device)
    return noise, classes[(i * m.batch_size + at) % len(classes)]


def export(m: MaskMethod, seed: int, s: Scores, trained: bool) -> Mapping[str, Model]:
    """Return the models: W⊙M* as a seed and a coded mask and, after training, θ for a new mask in every batch.

    Args:
        m: The method.
        seed: Seed of W.
        s: Final scores.
        trained: Whether at least one round has finished.
    """
    mask: NDArray[np.bool_] = s > 0  # θ > 1/2
    if m.final_mask == "sample":
        mask = Rng((seed,)).child("final mask").numpy().random(len(s)) < scores.theta(s)
    header: dict[str, Any] = {"generator": m.generator, "shape": list(m.task.shape)}
    header |= {"classes": m.task.classes, "width": m.width, "seed": seed}
    net, least = build_network(m, seed), fewest_coded_bytes(header)  # a reader refuses files that are shorter
    coded = encode_mask(net, mask)
    coded = coded if len(coded) >= least else encode_mask(net, mask, packed=True)
    models = {"generator": Model("masked", {**header, "mask": coded})}
    if trained:
        coded = encode_values(s)
        coded = coded if len(coded) >= least else encode_values(s, packed=True)
        models["ensemble"] = Model("ensemble", {**header, "scores": coded})
    return models
