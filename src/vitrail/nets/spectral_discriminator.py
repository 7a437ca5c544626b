"""PaDPaF's discriminators, content's and style's alike: a featurizer φ, a head, and a projector g for Barlow Twins.

D(x, y) = y^T V φ(x) + ψ(φ(x)) (Eq. 5, Miyato & Koyama 2018), without an activation; every layer spectrally normalised.
"""

from __future__ import annotations

import math
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vitrail.nets.resampling import mean_of_convolution

Layer = TypeVar("Layer", nn.Conv2d, nn.Linear, nn.Embedding)


class Spectral(nn.Module):
    """A weight over its largest singular value, by one step of power iteration in each pass (Miyato et al. 2018).

    torch's own begins with a vector from the global random state; `warm_up_spectral_norm` begins with ones.
    """

    u: Tensor

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.register_buffer("u", torch.ones(rows))

    def forward(self, weight: Tensor) -> Tensor:
        matrix = weight.flatten(1)
        with torch.no_grad():
            v = F.normalize(matrix.T @ self.u, dim=0)
            if self.training:
                self.u.copy_(F.normalize(matrix @ v, dim=0))
        return weight / torch.dot(self.u.clone(), matrix @ v)


def spectral(layer: Layer) -> Layer:
    """A layer with its weight spectrally normalised."""
    normalised = Spectral(len(layer.weight))
    parametrize.register_parametrization(layer, "weight", normalised, unsafe=True)  # not run to see if its shape stays
    return layer


def warm_up_spectral_norm(net: nn.Module, steps: int = 15) -> None:
    """Begin power iteration anew, for weights that were just loaded."""
    net.train()
    with torch.no_grad():
        for m in net.modules():
            if isinstance(m, Spectral):
                m.u.fill_(1 / math.sqrt(len(m.u)))
        for _ in range(steps):
            for m in net.modules():
                if hasattr(m, "parametrizations"):
                    _ = m.weight


class Block(nn.Module):
    """Residual block: ReLU, conv3x3, ReLU, conv3x3, and where it halves a mean over 2x2 beside a conv1x1.

    The first block of a network begins without ReLU, since its input is a picture.
    """

    def __init__(self, inside: int, outside: int, halves: bool, first: bool = False) -> None:
        super().__init__()
        self.halves, self.first = halves, first
        self.conv1 = spectral(nn.Conv2d(inside, outside, 3, padding=1))
        self.conv2 = spectral(nn.Conv2d(outside, outside, 3, padding=1))
        self.bypass = spectral(nn.Conv2d(inside, outside, 1)) if halves else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.conv1(x if self.first else F.relu(x)))
        if self.halves:  # a mean and a 1x1 convolution commute, and the mean first is cheaper
            out: Tensor = mean_of_convolution(h, self.conv2) + self.bypass(F.avg_pool2d(x, 2))
        else:
            out = x + self.conv2(h)
        return out


class SpectralDiscriminator(nn.Module):
    """φ, ψ, V and g: `features`, `head` and `project`; called, D(x, y)."""

    def __init__(self, shape: tuple[int, int, int], classes: int, features: int) -> None:
        super().__init__()
        halvings = max(1, int(math.log2(shape[1])) - 3)  # down to 8x8, twice at 32x32
        blocks = [Block(shape[0], features, True, first=True)]
        blocks += [Block(features, features, True) for _ in range(halvings - 1)]
        blocks += [Block(features, features, False) for _ in range(2)]
        self.blocks = nn.Sequential(*blocks)
        self.psi = spectral(nn.Linear(features, 1))
        self.embed = spectral(nn.Embedding(classes, features)) if classes else None
        self.projector = nn.Sequential(
            spectral(nn.Linear(features, 2 * features, bias=False)),
            nn.BatchNorm1d(2 * features, track_running_stats=False),
            nn.ReLU(),
            spectral(nn.Linear(2 * features, 2 * features, bias=False)),
        )

    def map(self, x: Tensor) -> Tensor:
        """What φ(x) is the mean over places of."""
        return F.relu(self.blocks(x.contiguous(memory_format=torch.channels_last)))  # faster on a CPU

    def features(self, x: Tensor) -> Tensor:
        """φ(x)."""
        return self.map(x).mean((2, 3))

    def head(self, phi: Tensor, y: Tensor | None = None) -> Tensor:
        """Eq. 5 from φ(x)."""
        out: Tensor = self.psi(phi)[:, 0]
        return out if self.embed is None or y is None else out + (self.embed(y) * phi).sum(1)

    def project(self, phi: Tensor) -> Tensor:
        """g(φ(x)), of a batch of at least two."""
        out: Tensor = self.projector(phi)
        return out

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return self.head(self.features(x), y)
