"""The encoder of PaDPaF's β-VAE, content's and style's alike: a picture to mean and log-variance of a latent vector."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.nets.generators import ups


class Encoder(nn.Module):
    """p(z|x): convolutions that halve down to 4x4, then one dense layer."""

    def __init__(self, shape: tuple[int, int, int], features: int, latent: int) -> None:
        super().__init__()
        widths = [shape[0], *[features] * ups(shape[1])]
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, 4, stride=2, padding=1) for a, b in pairwise(widths))
        self.dense = nn.Linear(16 * features, 2 * latent)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.convolutions:
            x = F.leaky_relu(layer(x), 0.2)
        mu, log_variance = self.dense(x.flatten(1)).chunk(2, 1)
        return mu, log_variance
