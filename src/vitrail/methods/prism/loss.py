"""PRISM's loss: the feature moments of real and generated images are matched (Eq. 1).

A loss is called with a batch of generated images and their labels. What it stores between rounds stays on the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.released_sums import AveragedMoments, load_public_features, released_loss
from vitrail.nets.dcgan import DcganDiscriminator, initialise
from vitrail.nets.feature_moments import FeatureMoments, class_moments, moment_loss
from vitrail.nets.feature_network import Features
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, cached

if TYPE_CHECKING:
    from vitrail.methods.prism.algorithm import Prism


def build_loss(p: Prism, data: Images, rng: Rng, state: State) -> AveragedMoments | AdamMovingAverage | GanLoss:
    """Return the loss of a client, as the settings choose it; `state` is what it stored after its last round."""
    classes, device = p.task.classes, p.task.device
    if p.loss == "gan":
        return GanLoss(p, data, rng.child("adversary"), state)
    weight = p.smoothing if p.moment_averaging == "exponential" else 1.0
    if p.privacy == "moments":
        return released_loss(p, data, p.source(rng.child("moments")), weight, state)
    psi, psi_digest = load_public_features(p.features, p.layers, device, p.precision)
    real = real_moments(psi, psi_digest, data, classes, device, p.batch_size)
    if p.moment_averaging == "adam":
        return AdamMovingAverage(psi, real, p.ama_lr, state)
    return eq1(psi, real, weight)


def eq1(psi: Features, real: FeatureMoments, weight: float) -> AveragedMoments:
    """Return Eq. 1: the squared distance of means and variances of ψ."""
    return AveragedMoments(lambda x, y: class_moments(psi(x), y, real.share.numel()), moment_loss, real, weight)


class AdamMovingAverage:
    """The paper's AMA (Eq. 7 and 8): m and v follow the differences of mean and variance under Adam.

    m ← m - λ·Adam(m - Δμ), v ← v - λ·Adam(v - Δσ²); the loss is the linear form m·Δμ + v·Δσ².
    """

    def __init__(self, psi: Features, real: FeatureMoments, lr: float, state: State) -> None:
        self.psi, self.real = psi, real
        self.present = torch.nonzero(real.share, as_tuple=True)[0]
        vectors = state.get("followers") or [torch.zeros_like(real.first), torch.zeros_like(real.second)]
        self.m, self.v = (t.to(real.first.device) for t in vectors)
        self.adam = torch.optim.Adam([self.m, self.v], lr=lr)
        for vector, averages in zip((self.m, self.v), state.get("adam", ()), strict=False):
            self.adam.state[vector] = {k: t.clone() for k, t in averages.items()}

    def __call__(self, fakes: Tensor, y: Tensor) -> Tensor:
        fake = class_moments(self.psi(fakes), y, self.real.share.numel())
        present = (fake.share > 0)[:, None]
        delta_mean = (fake.first - self.real.first) * present
        delta_var = (fake.variance - self.real.variance) * present
        self.m.grad = (self.m - delta_mean.detach()) * present
        self.v.grad = (self.v - delta_var.detach()) * present
        self.adam.step()
        share = self.real.share[:, None]
        return (share * (self.m * delta_mean + self.v * delta_var)).sum()

    def state(self) -> State:
        """Return m, v and their Adam state, which persist across rounds."""
        return {"followers": [self.m, self.v], "adam": [dict(self.adam.state[t]) for t in (self.m, self.v)]}


# -- A discriminator in place of Eq. 1 ------------------------------------------------------------------------------


class GanLoss:
    """The GAN loss of the paper's ablation (Figure 10): a discriminator, never sent, that takes a step on every batch.

    Args:
        p: The method.
        data: The client's images.
        rng: Source of randomness.
        state: What `state()` returned after the last round; empty at first.
    """

    def __init__(self, p: Prism, data: Images, rng: Rng, state: State) -> None:
        labels, device = data.class_labels(p.task.classes), p.task.device
        channels, height, width = data.pixels.shape[1:]
        self.D = DcganDiscriminator((channels, height, width), p.task.classes)
        initialise(self.D, rng.child("discriminator").torch())
        if state:
            self.D.load_state_dict(state["net"])
        adam: Any = dict(enumerate(state["adam"])) if state else None
        self.adam = gan.adam(self.D.to(device), p.d_lr, (0.5, 0.999), adam)
        self.present = torch.from_numpy(np.unique(labels)).to(device)
        self.run, self.data, self.draw = p, Images(data.pixels, labels), rng.child("real").numpy()

    def __call__(self, fakes: Tensor, y: Tensor) -> Tensor:
        pick = self.draw.integers(len(self.data), size=self.run.batch_size)
        real = gan.image_batch(self.data, pick, self.run.task)
        gan.step(self.adam, F.softplus(-self.D(*real)).mean() + F.softplus(self.D(fakes.detach(), y)).mean())
        return F.softplus(-self.D(fakes, y)).mean()

    def state(self) -> State:
        """Return the discriminator and its optimizer's state."""
        return {"net": self.D.state_dict(), "adam": [dict(self.adam.state[p]) for p in self.D.parameters()]}


# -- Real moments ---------------------------------------------------------------------------------------------------


def real_moments(psi: Features, psi_digest: str, data: Images, classes: int, device: str, few: int) -> FeatureMoments:
    """Return mean and variance of ψ over a client's images by class, cached by content if there are more than `few`."""
    labels, kinds = data.class_labels(classes), max(classes, 1)

    def compute() -> State:
        return FeatureMoments.of_images(psi, data.pixels, labels, kinds, device).tree()

    if len(data) <= few:  # faster to compute than to read
        return FeatureMoments.from_tree(compute(), device)
    key = f"2 {psi_digest} {psi.precision} {psi.layers} {kinds} {data.digest()}"
    return FeatureMoments.from_tree(cached("moments", key, compute), device)
