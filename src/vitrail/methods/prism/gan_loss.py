"""PRISM's ablation with a GAN loss (Figure 10): each client trains a discriminator, which it never sends."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.nets.dcgan import DcganDiscriminator, initialise
from vitrail.nets.feature_moments import to_float
from vitrail.utils.rng import Rng
from vitrail.utils.state import State


class GanLoss:
    """The loss of a discriminator that takes one step on every batch.

    Args:
        data: The client's images.
        labels: Their labels; zeros if the run has none.
        classes: Number of classes; 0 without labels.
        batch_size: Real images per step.
        device: Where the discriminator is trained.
        rng: Source of randomness.
        state: What `state()` returned after the last round; empty at first.
    """

    def __init__(
        self,
        data: Images,
        labels: NDArray[np.int64],
        classes: int,
        batch_size: int,
        device: str,
        rng: Rng,
        state: State,
    ) -> None:
        channels, height, width = data.pixels.shape[1:]
        self.D = DcganDiscriminator((channels, height, width), classes)
        initialise(self.D, rng.child("discriminator").torch())
        if state:
            self.D.load_state_dict(state["net"])
        self.D.to(device)
        self.adam = torch.optim.Adam(self.D.parameters(), lr=2e-4, betas=(0.5, 0.999))
        for parameter, averages in zip(self.D.parameters(), state.get("adam", ()), strict=False):
            self.adam.state[parameter] = {k: t.clone() for k, t in averages.items()}
        self.present = torch.from_numpy(np.unique(labels)).to(device)
        self.real = _batches(data.pixels, labels, batch_size, device, rng.child("real").numpy())

    def __call__(self, fakes: Tensor, y: Tensor) -> Tensor:
        x, labels = next(self.real)
        gan.step(self.adam, F.softplus(-self.D(x, labels)).mean() + F.softplus(self.D(fakes.detach(), y)).mean())
        return F.softplus(-self.D(fakes, y)).mean()

    def state(self) -> State:
        """Return the discriminator and its optimizer's state."""
        return {"net": self.D.state_dict(), "adam": [dict(self.adam.state[p]) for p in self.D.parameters()]}


def _batches(
    pixels: NDArray[np.uint8], labels: NDArray[np.int64], n: int, device: str, draw: np.random.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        i = draw.integers(len(pixels), size=n)
        yield to_float(pixels[i]).to(device), torch.from_numpy(labels[i]).to(device)
