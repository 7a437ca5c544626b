"""The discriminator of PaDPaF, used for content and for style: featurizer φ, head, and projector g for Barlow Twins.

D(x, y) = y^T V φ(x) + ψ(φ(x)) (Eq. 5; Miyato & Koyama 2018) with identity activation; all layers have spectral
normalization.
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


class SpectralNorm(nn.Module):
    """Divide a weight by its largest singular value: one step of power iteration per pass (Miyato et al. 2018).

    PyTorch's own version starts from the global random state; `warm_up_spectral_norm` starts from ones.
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
    """Add spectral normalization to the weight of a layer."""
    norm = SpectralNorm(len(layer.weight))
    parametrize.register_parametrization(layer, "weight", norm, unsafe=True)  # unsafe: do not run it to check the shape
    return layer


def warm_up_spectral_norm(net: nn.Module, steps: int = 15) -> None:
    """Restart power iteration after weights were loaded.

    Args:
        net: A network with spectral normalization; put in training mode.
        steps: Steps of power iteration.
    """
    net.train()
    with torch.no_grad():
        for m in net.modules():
            if isinstance(m, SpectralNorm):
                m.u.fill_(1 / math.sqrt(len(m.u)))
        for _ in range(steps):
            for m in net.modules():
                if hasattr(m, "parametrizations"):
                    _ = m.weight


class Block(nn.Module):
    """Residual block: ReLU, conv3x3, ReLU, conv3x3; if it halves, mean over 2x2, with a conv1x1 on the bypass.

    The first block of a network has no ReLU at the start, since its input is an image.
    """

    def __init__(self, inside: int, outside: int, halves: bool, first: bool = False) -> None:
        super().__init__()
        self.halves, self.first = halves, first
        self.conv1 = spectral(nn.Conv2d(inside, outside, 3, padding=1))
        self.conv2 = spectral(nn.Conv2d(outside, outside, 3, padding=1))
        self.bypass = spectral(nn.Conv2d(inside, outside, 1)) if halves else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.conv1(x if self.first else F.relu(x)))
        if self.halves:  # mean and 1x1 convolution commute; the mean first is cheaper
            return mean_of_convolution(h, self.conv2) + self.bypass(F.avg_pool2d(x, 2))
        return x + self.conv2(h)


class SpectralDiscriminator(nn.Module):
    """D(x, y), with φ as `features`, ψ and V in `head`, and g as `project`.

    Args:
        shape: Channels, height and width of an image.
        classes: Number of labels; 0 without.
        features: Channels of every layer, and dimension of φ(x).

    Examples:
        >>> D = SpectralDiscriminator((1, 8, 8), 10, 4)
        >>> D(torch.zeros(2, 1, 8, 8), torch.tensor([3, 7])).shape
        torch.Size([2])
    """

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
        """Return the feature map whose mean over positions is φ(x)."""
        return F.relu(self.blocks(x.contiguous(memory_format=torch.channels_last)))  # faster on a CPU

    def features(self, x: Tensor) -> Tensor:
        """Return φ(x)."""
        return self.map(x).mean((2, 3))

    def head(self, phi: Tensor, y: Tensor | None = None) -> Tensor:
        """Return D(x, y) from φ(x) (Eq. 5)."""
        out: Tensor = self.psi(phi)[:, 0]
        return out if self.embed is None or y is None else out + (self.embed(y) * phi).sum(1)

    def project(self, phi: Tensor) -> Tensor:
        """Return g(φ(x)) for a batch of at least two images."""
        return self.projector(phi)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return self.head(self.features(x), y)
