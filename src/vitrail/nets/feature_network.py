"""Perceptual features ψ: ReLU outputs of a frozen network in the style of VGG (Simonyan & Zisserman 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitrail.nets.precision import Precision, autocast
from vitrail.utils.errors import VitrailError


@dataclass(frozen=True)
class LayerPlan:
    """Layers of a feature network: 3x3 convolutions, each followed by a ReLU, in blocks with a pool between them.

    Args:
        blocks: Channels of the convolutions of each block.
        pool: "average" or "max".
        mean: Subtracted from the colour channels of images in [-1, 1].
        std: Divides the result.

    Examples:
        >>> LayerPlan(((16,), (32, 32)), "average").widths
        (16, 32, 32)
    """

    blocks: tuple[tuple[int, ...], ...]
    pool: str
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of every layer."""
        return tuple(width for block in self.blocks for width in block)

    @property
    def opens(self) -> tuple[int, ...]:
        """Indices of the layers that follow a pool."""
        return tuple(sum(map(len, self.blocks[:b])) for b in range(1, len(self.blocks)))

    @property
    def positions(self) -> tuple[int, ...]:
        """Index of each convolution in torchvision's list of layers, which counts ReLUs and pools, too."""
        return tuple(2 * layer + sum(o <= layer for o in self.opens) for layer in range(len(self.widths)))


class Features(nn.Module):
    """Frozen feature network ψ: images in [-1, 1], grey or colour, to the ReLU outputs of the chosen layers.

    All outputs are at least 0, on which the sensitivity of private feature sums depends.

    Args:
        plan: The layers of the network; all are returned unless `layers` is set.

    Examples:
        >>> from vitrail.nets.features import load_features
        >>> psi = load_features("vitrail-fashion")
        >>> x = torch.zeros(2, 1, 32, 32)
        >>> [tuple(y.shape[1:]) for y in psi(x)][-1], tuple(psi.flat(x).shape)
        ((96, 4, 4), (2, 44032))
        >>> psi.layers = (0, 2)
        >>> psi.dim((1, 32, 32))
        24576
    """

    mean: Tensor
    std: Tensor
    layers: tuple[int, ...]
    """Indices of the ReLU outputs that are returned, ascending from 0; layers beyond the last are not computed."""
    precision: Precision = "float32"
    """Arithmetic of the convolutions; outputs have the type of the images."""

    def __init__(self, plan: LayerPlan) -> None:
        super().__init__()
        self.plan, self.layers = plan, tuple(range(len(plan.widths)))
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise((3, *plan.widths)))
        self.register_buffer("mean", torch.tensor(plan.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(plan.std).view(3, 1, 1), persistent=False)
        self.eval().requires_grad_(False)

    def train(self, mode: bool = True) -> Features:  # noqa: ARG002
        """Stay in evaluation mode: ψ is never trained."""
        return super().train(False)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the chosen layers' outputs, each (n, channels, height, width), first layer first."""
        if x.ndim != 4 or x.shape[1] not in (1, 3):
            raise VitrailError(f"features of an array {tuple(x.shape)}: expected images (n, 1 or 3, height, width)")
        y = ((x.expand(-1, 3, -1, -1) - self.mean) / self.std).contiguous(memory_format=torch.channels_last)
        outputs = []
        with autocast(x, self.precision):
            for layer, conv in enumerate(self.convs[: self.layers[-1] + 1]):
                y = functional.relu(conv(halve(y, self.plan.pool) if layer in self.plan.opens else y))
                if layer in self.layers:
                    outputs.append(y)
        return [y.to(x.dtype) for y in outputs]

    def flat(self, x: Tensor) -> Tensor:
        """Return the features of each image as one row, all positions included: (n, dim)."""
        return torch.cat([y.flatten(1) for y in self(x)], dim=1)

    def dim(self, shape: tuple[int, ...]) -> int:
        """Return the number of features of an image of this shape, (..., height, width)."""
        (h, w), total = shape[-2:], 0
        for layer, width in enumerate(self.plan.widths):
            if layer in self.plan.opens:
                h, w = (h + 1) // 2, (w + 1) // 2
            total += width * h * w * (layer in self.layers)
        return total


def halve(y: Tensor, pool: str) -> Tensor:
    """Halve height and width, rounding up, so that no image is too small: 1x1 stays 1x1."""
    return (functional.avg_pool2d if pool == "average" else functional.max_pool2d)(y, 2, ceil_mode=True)
