"""Masks over a frozen random generator: the parts that `prism` and `moments` share.

Both build the network W from a seed, train scores s with Adam, and export the seed and a coded mask.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.methods.base import Model
from vitrail.methods.private import PrivateMethod
from vitrail.models.kinds.seeded import fewest_coded_bytes
from vitrail.nets import generators
from vitrail.nets.features import choose_features
from vitrail.nets.masked import Masked, encode_mask
from vitrail.nets.precision import Precision, fastest_precision
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire import scores
from vitrail.wire.range_coder import encode_values
from vitrail.wire.scores import Scores


class MaskMethod(PrivateMethod):
    """A method that trains a mask over a frozen generator against moments of features: the settings used here."""

    generator: str
    width: float
    batch_size: int
    schedule: Literal["cosine", "constant"]
    precision: Precision
    features: str
    layers: str
    pool_size: int
    final_mask: Literal["mode", "sample"]
    betas: ClassVar[tuple[float, float]]

    def auto_settings(self, data: str) -> Mapping[str, Any]:
        """Return values for settings of "auto": a network ψ that has not seen the data, and the fastest arithmetic."""
        found = {"features": choose_features(data), "precision": fastest_precision()}
        return {name: value for name, value in found.items() if getattr(self, name) == "auto"}

    def for_audit(self) -> Self:
        """Return the method with little training: it is computed from what was released before."""
        short: dict[str, Any] = {"local_steps": 1, "batch_size": 2}
        return replace(self, **short)


def layer_sizes(m: MaskMethod) -> tuple[int, ...]:
    """Return the number of mask elements of each layer."""
    with torch.device("meta"):
        net = generators.build_generator(m.generator, m.task.shape, m.task.classes, m.width)
    return tuple(p.numel() for p in net.parameters())


def build_network(m: MaskMethod, seed: int) -> Masked:
    """Return the frozen network W; every party builds the same one from the seed."""
    net = generators.build_generator(m.generator, m.task.shape, m.task.classes, m.width)
    return Masked(net, seed, m.precision).to(m.task.device)


def learning_rate(m: MaskMethod, lr: float, t: int) -> float:
    """Return the learning rate of round t, which starts at lr."""
    if m.schedule == "constant":
        return lr
    return lr * (0.5 + 0.5 * math.cos(math.pi * t / m.task.rounds))


def score_optimizer(m: MaskMethod, s: Tensor, lr: float, t: int, state: State) -> torch.optim.Adam:
    """Return the Adam of s in round t, with first learning rate lr; `state` is that after the last round, or empty."""
    optimizer = torch.optim.Adam([s], lr=learning_rate(m, lr, t), betas=m.betas, fused=True)
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
    header = _header(m, seed)
    net, least = build_network(m, seed), fewest_coded_bytes(header)  # a reader refuses files that are shorter
    coded = encode_mask(net, mask)
    coded = coded if len(coded) >= least else encode_mask(net, mask, packed=True)
    models = {"generator": Model("masked", {**header, "mask": coded})}
    if trained:
        coded = encode_values(s)
        coded = coded if len(coded) >= least else encode_values(s, packed=True)
        models["ensemble"] = Model("ensemble", {**header, "scores": coded})
    return models


# -- Trained weights in place of a mask ----------------------------------------------------------------------------


def first_weights(m: MaskMethod, seed: int) -> State:
    """Return the first weights, by torch's own initialisation from a seed, and their first average."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # torch's layers use the global state
        net = generators.build_generator(m.generator, m.task.shape, m.task.classes, m.width)
    return {"weights": weights_of(net), "average": weights_of(net)}


def dense_network(m: MaskMethod, weights: Mapping[str, Tensor]) -> Any:
    """Return the generator with these weights, ready for training."""
    net = generators.build_generator(m.generator, m.task.shape, m.task.classes, m.width)
    net.load_state_dict(weights, strict=False)  # without BatchNorm's statistics, which training does not use
    return net.to(m.task.device)


def weights_of(net: torch.nn.Module) -> dict[str, Tensor]:
    """Return copies of a network's weights by name."""
    return {name: p.detach().cpu().clone() for name, p in net.named_parameters()}


def export_weights(m: MaskMethod, seed: int, weights: Mapping[str, Tensor]) -> Model:
    """Return the network with trained weights, as float16 by name.

    Args:
        m: The method.
        seed: Seed of the noise from which BatchNorm's statistics are computed.
        weights: The weights by name.
    """
    return Model("dense", {**_header(m, seed), "weights": {k: w.half() for k, w in weights.items()}})


def _header(m: MaskMethod, seed: int) -> dict[str, Any]:
    """Return what a model file needs to build the network."""
    network = {"generator": m.generator, "shape": list(m.task.shape), "classes": m.task.classes, "width": m.width}
    return {**network, "seed": seed}
