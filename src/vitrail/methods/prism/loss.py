"""PRISM's loss: the feature moments of real and generated images are matched (Eq. 1).

A loss is called with a batch of generated images and their labels. What it stores between rounds stays on the client.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.nets.dcgan import DcganDiscriminator, initialise
from vitrail.nets.feature_moments import FeatureMoments, class_moments, exponential_average, moment_loss
from vitrail.nets.feature_network import Features
from vitrail.nets.features import load_features, parse_layers
from vitrail.nets.precision import Precision
from vitrail.nets.pretrained import weights_digest
from vitrail.privacy.feature_sums import Summary, class_sums, estimate, noised, raw_loss
from vitrail.privacy.noise import Source
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, cached

if TYPE_CHECKING:
    from vitrail.methods.moments import Moments
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


class AveragedMoments:
    """Eq. 1 on a running average of the generated images' moments.

    The average is a plain one at first, then exponential.

    Args:
        measure: Moments of a batch of images and labels.
        distance: Distance of two moments.
        real: Moments to match.
        weight: Weight of the newest batch; 1 is Eq. 1 on each batch alone.
        stored: What `state()` returns.
    """

    def __init__(
        self,
        measure: Callable[[Tensor, Tensor], FeatureMoments],
        distance: Callable[[FeatureMoments, FeatureMoments], Tensor],
        real: FeatureMoments,
        weight: float,
        stored: State | None = None,
    ) -> None:
        self.measure, self.distance, self.real, self.weight, self.stored = measure, distance, real, weight, stored or {}
        self.present = torch.nonzero(real.share, as_tuple=True)[0]
        self.smooth: FeatureMoments | None = None
        self.batches = 0

    def __call__(self, fakes: Tensor, y: Tensor) -> Tensor:
        fake = self.measure(fakes, y)
        self.batches += 1
        if self.smooth is not None:
            fake = exponential_average(self.smooth, fake, max(self.weight, 1 / self.batches))
        self.smooth = fake.detach() if self.weight < 1 else None
        return self.distance(self.real, fake)

    def state(self) -> State:
        """Return no averages: those of an earlier generator would be misleading."""
        return self.stored


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
        loss: Tensor = (share * (self.m * delta_mean + self.v * delta_var)).sum()
        return loss

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
        labels, device = class_labels(data, p.task.classes), p.task.device
        channels, height, width = data.pixels.shape[1:]
        self.D = DcganDiscriminator((channels, height, width), p.task.classes)
        initialise(self.D, rng.child("discriminator").torch())
        if state:
            self.D.load_state_dict(state["net"])
        adam: Any = dict(enumerate(state["adam"])) if state else None
        self.adam = gan.adam(self.D.to(device), 2e-4, (0.5, 0.999), adam)
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


@cache
def load_public_features(name: str, layers: str, device: str, precision: Precision = "float32") -> tuple[Features, str]:
    """Return the public, frozen network ψ and a digest of its weights; loaded once per process.

    Args:
        name: Name of the feature network.
        layers: "all", or layer indices such as "1,3,7".
        device: Where it runs.
        precision: Arithmetic of its convolutions.
    """
    psi = load_features(name, device=device)
    psi.precision = precision
    psi.layers = parse_layers(name, layers)
    return psi, weights_digest(psi)


def real_moments(psi: Features, psi_digest: str, data: Images, classes: int, device: str, few: int) -> FeatureMoments:
    """Return mean and variance of ψ over a client's images by class, cached by content if there are more than `few`."""
    labels, kinds = class_labels(data, classes), max(classes, 1)

    def compute() -> State:
        return FeatureMoments.of_images(psi, data.pixels, labels, kinds, device).tree()

    if len(data) <= few:  # faster to compute than to read
        return FeatureMoments.from_tree(compute(), device)
    key = f"2 {psi_digest} {psi.precision} {psi.layers} {kinds} {data.digest()}"
    return FeatureMoments.from_tree(cached("moments", key, compute), device)


def class_labels(data: Images, classes: int) -> NDArray[np.int64]:
    """Return a client's labels; zeros if the run has no classes.

    Args:
        data: The client's images.
        classes: Number of classes of the run; 0 without labels.
    """
    return data.labels if classes and data.labels is not None else np.zeros(len(data), np.int64)


# -- Moments released with noise ------------------------------------------------------------------------------------


def feature_summary(m: Prism | Moments, precision: Precision = "float32") -> Summary:
    """Return the description of what is summed of each image; private images are always summed in float32."""
    psi, _ = load_public_features(m.features, m.layers, m.task.device, precision)
    return Summary(psi, m.pool_size, m.task.shape)


def feature_sums(m: Prism | Moments, data: Images) -> NDArray[np.int64]:
    """Return a client's sums before noise, cached by the content of its images."""
    summary, classes = feature_summary(m), m.task.classes
    kinds = max(classes, 1)

    def compute() -> State:
        return {"sums": class_sums(summary, data.pixels, class_labels(data, classes), kinds)}

    _, psi_digest = load_public_features(m.features, m.layers, m.task.device)
    sums: NDArray[np.int64] = cached("sums", f"2 {psi_digest} {summary.key} {kinds} {data.digest()}", compute)["sums"]
    return sums


def released_loss(m: Prism | Moments, data: Images, source: Source, weight: float, state: State) -> AveragedMoments:
    """Return the loss against moments that the client noises in its first round and then stores."""
    assert m.mechanism is not None  # noqa: S101
    sigma = m.mechanism.sigma * feature_summary(m).grid
    sums = state["released"] if state else noised(feature_sums(m, data), sigma, source)
    return match_released_sums(m, sums, sigma, weight, {"released": sums})


def match_released_sums(
    m: Prism | Moments, sums: NDArray[Any], sigma: float, weight: float, stored: State
) -> AveragedMoments:
    """Return the loss against released sums with noise of this σ."""
    summary, kinds = feature_summary(m, m.precision), max(m.task.classes, 1)
    real = estimate(summary, sums.astype(np.float64), sigma, m.task.device)
    return AveragedMoments(lambda x, y: summary.moments(x, y, kinds), raw_loss, real, weight, stored)
