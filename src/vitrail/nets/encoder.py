"""The encoder of PaDPaF's β-VAE, used for content and for style."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.nets.generators import num_doublings


class Encoder(nn.Module):
    """p(z|x): strided convolutions down to 4x4, then one dense layer to mean and log-variance of z.

    Args:
        shape: Channels, height and width of an image.
        features: Channels of every layer.
        latent: Dimension of z.

    Examples:
        >>> import torch
        >>> mean, log_variance = Encoder((1, 8, 8), 4, 3)(torch.zeros(2, 1, 8, 8))
        >>> mean.shape, log_variance.shape
        (torch.Size([2, 3]), torch.Size([2, 3]))
    """

    def __init__(self, shape: tuple[int, int, int], features: int, latent: int) -> None:
        super().__init__()
        widths = [shape[0], *[features] * num_doublings(shape[1])]
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, 4, stride=2, padding=1) for a, b in pairwise(widths))
        self.dense = nn.Linear(16 * features, 2 * latent)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.convolutions:
            x = F.leaky_relu(layer(x), 0.2)
        mu, log_variance = self.dense(x.flatten(1)).chunk(2, 1)
        return mu, log_variance
