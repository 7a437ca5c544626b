"""What a PRISM client trains its scores against: feature moments (Eq. 1), smoothed in one of three ways, or a GAN.

A loss is called with a batch of fakes and their labels, and gives a number to go down on. What it keeps between rounds
belongs to the client and never leaves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.cache import remember
from vitrail.data.pictures import Pictures
from vitrail.nets.dcgan import Discriminator, initialise
from vitrail.nets.features import Features, load_features, parse_layers
from vitrail.nets.moments import Moments, class_moments, mix, moment_loss, to_float
from vitrail.nets.pretrained import weights_digest
from vitrail.rng import Rng
from vitrail.state import State


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

    A weight of 1 is Eq. 1 on each batch alone.
    """

    def __init__(self, psi: Features, real: Moments, weight: float) -> None:
        self.psi, self.real, self.weight = psi, real, weight
        self.present = torch.nonzero(real.share, as_tuple=True)[0]
        self.smooth: Moments | None = None
        self.batches = 0

    def __call__(self, fakes: Tensor, y: Tensor) -> Tensor:
        fake = class_moments(self.psi(fakes), y, self.real.share.numel())
        self.batches += 1
        if self.smooth is not None:
            fake = mix(self.smooth, fake, max(self.weight, 1 / self.batches))
        self.smooth = fake.detach() if self.weight < 1 else None
        return moment_loss(self.real, fake)

    def kept(self) -> State:
        """Nothing: averages of an old generator would mislead."""
        return {}


class AdamAveraged:
    """AMA, as the paper has it (its Eq. 6 to 8): m and v follow the differences of mean and variance under Adam.

    m ← m - λ·Adam(m - Δμ), v ← v - λ·Adam(v - Δσ²); the loss is the linear form m·Δμ + v·Δσ².
    """

    def __init__(self, psi: Features, real: Moments, rate: float, kept: State) -> None:
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

    def __init__(self, data: Pictures, batch: int, classes: int, device: str, rng: Rng, kept: State) -> None:
        shape = tuple(data.pixels.shape[1:])
        self.net = Discriminator((shape[0], shape[1], shape[2]), classes)
        initialise(self.net, rng.child("discriminator").torch())
        if kept:
            self.net.load_state_dict(kept["net"])
        self.net.to(device)
        self.adam = torch.optim.Adam(self.net.parameters(), lr=2e-4, betas=(0.5, 0.999))
        for parameter, averages in zip(self.net.parameters(), kept.get("adam", ()), strict=False):
            self.adam.state[parameter] = {k: t.clone() for k, t in averages.items()}
        held = data.labels if classes and data.labels is not None else np.zeros(len(data), np.int64)
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


def real_moments(psi: Features, psi_digest: str, data: Pictures, classes: int, device: str, few: int) -> Moments:
    """Mean and variance of ψ over a client's pictures, per class; once per content, then from the cache."""
    labels = data.labels if classes and data.labels is not None else np.zeros(len(data), np.int64)
    kinds = max(classes, 1)

    def compute() -> State:
        return Moments.of_pictures(psi, data.pixels, labels, kinds, device).tree()

    if len(data) <= few:  # quicker computed than read
        return Moments.from_tree(compute(), device)
    key = f"{psi_digest} {psi.layers} {kinds} {data.digest()}"
    return Moments.from_tree(remember("moments", key, compute), device)
