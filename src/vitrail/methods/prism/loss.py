"""What a PRISM client trains its scores against: feature moments (Eq. 1), smoothed in one of three ways, or a GAN.

A loss is called with a batch of fakes and their labels, and gives a number to go down on. What it keeps between rounds
belongs to the client and never leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.data.dataset import Images
from vitrail.methods.base import Task
from vitrail.nets.dcgan import DcganDiscriminator, initialise
from vitrail.nets.feature_moments import FeatureMoments, class_moments, mix, moment_loss, to_float
from vitrail.nets.features import Features, load_features, parse_layers
from vitrail.nets.pretrained import weights_digest
from vitrail.privacy.feature_sums import Summary, class_sums, estimate, noised, raw_loss
from vitrail.privacy.mechanism import Mechanism
from vitrail.privacy.noise import Source
from vitrail.utils.cache import remember
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

Measure = Callable[[Tensor, Tensor], FeatureMoments]
Apart = Callable[[FeatureMoments, FeatureMoments], Tensor]


class Loss(Protocol):
    """What a client's fakes are measured by."""

    present: Tensor  # the classes this client holds

    def __call__(self, fakes: Tensor, y: Tensor) -> Tensor:
        """The loss of a batch, differentiable in the fakes."""
        ...

    def kept(self) -> State:
        """What the client keeps of it for its next round."""
        ...


class Averaged:
    """Eq. 1 on a running average of the fakes' moments: a plain one at first, then exponential with this weight.

    A weight of 1 is Eq. 1 on each batch alone. `measure` gives a batch's moments, `apart` how far two are.
    """

    def __init__(
        self, measure: Measure, apart: Apart, real: FeatureMoments, weight: float, keep: State | None = None
    ) -> None:
        self.measure, self.apart, self.real, self.weight, self.keep = measure, apart, real, weight, keep or {}
        self.present = torch.nonzero(real.share, as_tuple=True)[0]
        self.smooth: FeatureMoments | None = None
        self.batches = 0

    def __call__(self, fakes: Tensor, y: Tensor) -> Tensor:
        fake = self.measure(fakes, y)
        self.batches += 1
        if self.smooth is not None:
            fake = mix(self.smooth, fake, max(self.weight, 1 / self.batches))
        self.smooth = fake.detach() if self.weight < 1 else None
        return self.apart(self.real, fake)

    def kept(self) -> State:
        """No averages: those of an old generator would mislead."""
        return self.keep


def eq1(psi: Features, real: FeatureMoments, weight: float) -> Averaged:
    """Eq. 1 on ψ as it is: distances of means and variances."""
    return Averaged(lambda x, y: class_moments(psi(x), y, real.share.numel()), moment_loss, real, weight)


class AdamAveraged:
    """AMA, as the paper has it (its Eq. 6 to 8): m and v follow the differences of mean and variance under Adam.

    m ← m - λ·Adam(m - Δμ), v ← v - λ·Adam(v - Δσ²); the loss is the linear form m·Δμ + v·Δσ².
    """

    def __init__(self, psi: Features, real: FeatureMoments, rate: float, kept: State) -> None:
        self.psi, self.real = psi, real
        self.present = torch.nonzero(real.share, as_tuple=True)[0]
        followers = kept.get("followers") or [torch.zeros_like(real.first), torch.zeros_like(real.second)]
        self.m, self.v = (t.to(real.first.device) for t in followers)
        self.adam = torch.optim.Adam([self.m, self.v], lr=rate)
        for vector, averages in zip((self.m, self.v), kept.get("adam", ()), strict=False):
            self.adam.state[vector] = {k: t.clone() for k, t in averages.items()}

    def __call__(self, fakes: Tensor, y: Tensor) -> Tensor:
        fake = class_moments(self.psi(fakes), y, self.real.share.numel())
        seen = (fake.share > 0)[:, None]
        delta_mean, delta_var = ((fake.first - self.real.first) * seen, (fake.variance - self.real.variance) * seen)
        self.m.grad = (self.m - delta_mean.detach()) * seen
        self.v.grad = (self.v - delta_var.detach()) * seen
        self.adam.step()
        share = self.real.share[:, None]
        loss: Tensor = (share * (self.m * delta_mean + self.v * delta_var)).sum()
        return loss

    def kept(self) -> State:
        """m, v and Adam's averages of them: they persist across rounds."""
        return {"followers": [self.m, self.v], "adam": [dict(self.adam.state[t]) for t in (self.m, self.v)]}


class Adversary:
    """The paper's ablation: a discriminator of the client's own in place of moments; it never leaves the client."""

    def __init__(self, data: Images, batch: int, classes: int, device: str, rng: Rng, kept: State) -> None:
        shape = tuple(data.pixels.shape[1:])
        self.net = DcganDiscriminator((shape[0], shape[1], shape[2]), classes)
        initialise(self.net, rng.child("discriminator").torch())
        if kept:
            self.net.load_state_dict(kept["net"])
        self.net.to(device)
        self.adam = torch.optim.Adam(self.net.parameters(), lr=2e-4, betas=(0.5, 0.999))
        for parameter, averages in zip(self.net.parameters(), kept.get("adam", ()), strict=False):
            self.adam.state[parameter] = {k: t.clone() for k, t in averages.items()}
        held = labels_of(data, classes)
        self.present = torch.from_numpy(np.unique(held)).to(device)
        self.real = self._real(data.pixels, held, batch, device, rng.child("real").numpy())

    @staticmethod
    def _real(
        pixels: np.ndarray, labels: np.ndarray, batch: int, device: str, draw: np.random.Generator
    ) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            i = draw.integers(len(pixels), size=batch)
            yield to_float(pixels[i]).to(device), torch.from_numpy(labels[i]).to(device)

    def __call__(self, fakes: Tensor, y: Tensor) -> Tensor:
        x, labels = next(self.real)
        loss = F.softplus(-self.net(x, labels)).mean() + F.softplus(self.net(fakes.detach(), y)).mean()
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        return F.softplus(-self.net(fakes, y)).mean()

    def kept(self) -> State:
        """The discriminator and its optimiser."""
        return {"net": self.net.state_dict(), "adam": [dict(self.adam.state[p]) for p in self.net.parameters()]}


@cache
def public_features(name: str, layers: str, device: str) -> tuple[Features, str]:
    """ψ, public, frozen and used in training only, and a name for its weights; read once a process."""
    psi = load_features(name, device=device)
    psi.layers = parse_layers(name, layers)
    return psi, weights_digest(psi)


def real_moments(psi: Features, psi_digest: str, data: Images, classes: int, device: str, few: int) -> FeatureMoments:
    """Mean and variance of ψ over a client's pictures, per class; once per content, then from the cache."""
    labels, kinds = labels_of(data, classes), max(classes, 1)

    def compute() -> State:
        return FeatureMoments.of_pictures(psi, data.pixels, labels, kinds, device).tree()

    if len(data) <= few:  # quicker computed than read
        return FeatureMoments.from_tree(compute(), device)
    key = f"{psi_digest} {psi.layers} {kinds} {data.digest()}"
    return FeatureMoments.from_tree(remember("moments", key, compute), device)


def labels_of(data: Images, classes: int) -> NDArray[np.int64]:
    """A client's labels; where there are none, all pictures are of one kind."""
    return data.labels if classes and data.labels is not None else np.zeros(len(data), np.int64)


class Releasing(Protocol):
    """The settings that say what is released of a picture, and with how much noise."""

    @property
    def task(self) -> Task: ...
    @property
    def features(self) -> str: ...
    @property
    def layers(self) -> str: ...
    @property
    def pool_size(self) -> int: ...
    @property
    def mechanism(self) -> Mechanism | None: ...


def summary_of(settings: Releasing) -> Summary:
    """What is summed of a picture."""
    psi, _ = public_features(settings.features, settings.layers, settings.task.device)
    return Summary(psi, settings.pool_size, settings.task.shape)


def feature_sums(settings: Releasing, data: Images) -> NDArray[np.int64]:
    """A client's sums before noise; once per content, then from the cache."""
    summary, classes = summary_of(settings), settings.task.classes
    kinds = max(classes, 1)

    def compute() -> State:
        return {"sums": class_sums(summary, data.pixels, labels_of(data, classes), kinds)}

    _, named = public_features(settings.features, settings.layers, settings.task.device)
    sums: NDArray[np.int64] = remember("sums", f"2 {named} {summary.key} {kinds} {data.digest()}", compute)["sums"]
    return sums


def released_loss(settings: Releasing, data: Images, source: Source, weight: float, kept: State) -> Averaged:
    """Moments that a client made private once, at its first round, and has matched ever since."""
    assert settings.mechanism is not None  # noqa: S101
    sigma = settings.mechanism.sigma * summary_of(settings).grid
    sums = kept["released"] if kept else noised(feature_sums(settings, data), sigma, source)
    return matching(settings, sums, sigma, weight, {"released": sums})


def matching(settings: Releasing, sums: NDArray[Any], sigma: float, weight: float, keep: State) -> Averaged:
    """The loss against released sums that carry noise of this σ."""
    summary, kinds = summary_of(settings), max(settings.task.classes, 1)
    real = estimate(summary, sums.astype(np.float64), sigma, settings.task.device)
    return Averaged(lambda x, y: summary.moments(x, y, kinds), raw_loss, real, weight, keep)
