"""Generators: noise, and a label where there are any, to pictures in [-1, 1]."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.nets.pixels import differentiates, mix_channels, narrow, normalise, resize
from vitrail.nets.winograd import DOUBLE, FOUR, convolve, transform
from vitrail.utils.errors import VitrailError


def ups(size: int) -> int:
    """How often 4x4 is doubled to reach a picture's size.

    >>> ups(8), ups(32), ups(64)
    (1, 3, 4)
    """
    n = int(math.log2(size)) - 2
    if n < 1 or 4 << n != size:
        raise VitrailError(f"size={size}: these generators make squares of 8, 16, 32, 64, ... pixels; set size=32")
    return n


class Block(nn.Module):
    """Residual up-block: BN, ReLU, nearest x2, conv3x3, BN, ReLU, conv3x3, beside conv1x1 and nearest x2."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inside, affine=False)
        self.conv1 = nn.Conv2d(inside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside, affine=False)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bypass = nn.Conv2d(inside, outside, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = double(F.relu(self.bn1(x)))
        h = self.conv2(F.relu(self.bn2(self.conv1(h))))
        out: Tensor = h + double(self.bypass(x))
        return out

    def pixels_first(self, x: Tensor) -> Tensor:
        """The same on (h, w, n, c)."""
        h = convolve(normalise(self.bn1, x), transform(self.conv1.weight, DOUBLE), DOUBLE)
        h = convolve(normalise(self.bn2, h), transform(self.conv2.weight, FOUR), FOUR)
        return h.add_(resize(mix_channels(x, self.bypass.weight), double))


def double(x: Tensor) -> Tensor:
    """Nearest x2."""
    return F.interpolate(x, scale_factor=2.0)


class ResNet(nn.Module):
    """PRISM's generator (its Table 4), without biases or affine BatchNorm; a label joins the noise as one-hot."""

    def __init__(self, shape: tuple[int, int, int], classes: int, z: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.z, self.classes, self.shape = z, classes, shape
        self.first = nn.ConvTranspose2d(z + classes, widths[0], 4, bias=False)
        self.blocks = nn.Sequential(*(Block(a, b) for a, b in pairwise(widths)))
        self.bn = nn.BatchNorm2d(widths[-1], affine=False)
        self.last = nn.Conv2d(widths[-1], shape[0], 3, padding=1, bias=False)

    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        z = with_label(z, y, self.classes)
        if differentiates(self.first.weight):
            return self.pixels_first(z)
        h = self.blocks(self.first(z[:, :, None, None]))
        return torch.tanh(self.last(F.relu(self.bn(h))))

    def pixels_first(self, z: Tensor) -> Tensor:
        """The same, faster where it is differentiated."""
        h = (z @ self.first.weight.flatten(1)).view(len(z), -1, 4, 4).permute(2, 3, 0, 1).contiguous()
        for block in self.blocks:
            h = block.pixels_first(h)  # type: ignore[operator]
        return torch.tanh(narrow(normalise(self.bn, h), self.last.weight))


class DcGan(nn.Module):
    """DCGAN's generator (Radford, Metz, Chintala 2016) made fit for a mask: no biases, no affine BatchNorm."""

    def __init__(self, shape: tuple[int, int, int], classes: int, z: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.z, self.classes, self.shape = z, classes, shape
        layers: list[nn.Module] = [nn.ConvTranspose2d(z + classes, widths[0], 4, bias=False)]
        for inside, outside in pairwise((*widths, shape[0])):
            layers += [nn.BatchNorm2d(inside, affine=False), nn.ReLU()]
            layers += [nn.ConvTranspose2d(inside, outside, 4, 2, 1, bias=False)]
        self.layers = nn.Sequential(*layers, nn.Tanh())

    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        out: Tensor = self.layers(with_label(z, y, self.classes)[:, :, None, None])
        return out


def with_label(z: Tensor, y: Tensor | None, classes: int) -> Tensor:
    """Noise with its label appended as one-hot, scaled so that it speaks as loud as the noise."""
    if not classes or y is None:
        return z
    return torch.cat([z, F.one_hot(y, classes).to(z.dtype) * math.sqrt(classes)], 1)


GENERATORS: dict[str, str] = {
    "small": "residual, 128 to 16 channels, for a CPU",
    "resnet": "the PRISM paper's residual network, 512 to 64 channels at 32x32, 1024 to 64 at 64x64",
    "sngan": "SNGAN's residual network (Miyato et al. 2018), 256 channels throughout",
    "dcgan": "DCGAN's transposed convolutions, 512 to 128 channels at 32x32, 1024 to 128 at 64x64",
}
_SMALL = (128, 96, 64, 48, 32, 16)  # widths from 4x4 on, the last for the picture's own size


def build(name: str, shape: tuple[int, int, int], classes: int, width: float = 1.0) -> Any:
    """A generator by name for pictures of this shape, all channels times `width`.

    >>> g = build("resnet", (1, 32, 32), 0)
    >>> sum(p.numel() for p in g.parameters())
    3543616
    """
    n = ups(shape[1])

    def wide(*widths: int) -> tuple[int, ...]:
        return tuple(max(4, round(w * width)) for w in widths)

    if name == "small":
        return ResNet(shape, classes, 64, wide(*_SMALL[-n - 1 :]))
    if name == "resnet":
        return ResNet(shape, classes, 128, wide(*(64 << i for i in range(n, -1, -1))))
    if name == "sngan":
        return ResNet(shape, classes, 128, wide(*(256,) * (n + 1)))
    if name == "dcgan":
        return DcGan(shape, classes, 100, wide(*(128 << i for i in range(n - 1, -1, -1))))
    raise VitrailError(f"generator={name!r} is not known; known: {', '.join(GENERATORS)}")
