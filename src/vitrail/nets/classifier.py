"""A small image classifier, and the augmentation that it is trained with."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def build_classifier(channels: int, classes: int, norm: Literal["batch", "group"] = "batch") -> nn.Sequential:
    """Build three convolutions, an average over each quarter of the last feature map, and a linear layer.

    Args:
        channels: Channels of the images.
        classes: Number of classes.
        norm: Normalisation after each convolution, "batch" or "group".
    """

    def stage(a: int, b: int) -> list[nn.Module]:
        normal = nn.BatchNorm2d(b) if norm == "batch" else nn.GroupNorm(8, b)
        return [nn.Conv2d(a, b, 3, padding=1, bias=False), normal, nn.ReLU(), nn.MaxPool2d(2)]

    stages = [*stage(channels, 32), *stage(32, 64), *stage(64, 96)]
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(384, classes))


def random_shift(x: Tensor, draw: torch.Generator, most: int = 2) -> Tensor:
    """Shift each image by up to `most` pixels, an augmentation that classifiers need when images are few."""
    n, c, h, w = x.shape
    padded = F.pad(x, (most,) * 4, mode="replicate")
    dy, dx = torch.randint(0, 2 * most + 1, (2, n), generator=draw)
    rows = (dy[:, None] + torch.arange(h))[:, None, :, None]
    columns = (dx[:, None] + torch.arange(w))[:, None, None, :]
    return padded[torch.arange(n)[:, None, None, None], torch.arange(c)[None, :, None, None], rows, columns]
