"""Discriminators by name, so that a client may choose its own and the server can build it from a message."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vitrail.nets.dcgan import DcganDiscriminator
from vitrail.utils.errors import Malformed

WIDEST = 512


class Dense(nn.Module):
    """Pixels and label to a logit through two hidden layers."""

    def __init__(self, shape: tuple[int, int, int], classes: int, width: int) -> None:
        super().__init__()
        self.classes = classes
        inside = math.prod(shape) + classes
        self.layers = nn.Sequential(
            nn.Linear(inside, 4 * width), nn.LeakyReLU(0.2), nn.Linear(4 * width, width), nn.LeakyReLU(0.2)
        )
        self.last = nn.Linear(width, 1)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        x = x.flatten(1)
        if self.classes and y is not None:
            x = torch.cat([x, (y[:, None] == torch.arange(self.classes, device=y.device)).to(x.dtype)], 1)
        out: Tensor = self.last(self.layers(x))
        return out.flatten()


def discriminator(name: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The network that a name such as "dcgan:32" or "dense:64" stands for; none has BatchNorm or dropout.

    >>> sum(p.numel() for p in discriminator("dcgan:4", (1, 8, 8), 10).parameters())
    773
    """
    kind, _, digits = name.partition(":")
    if kind not in ("dcgan", "dense") or not (digits.isascii() and digits.isdigit() and len(digits) <= 4):
        raise Malformed(f"the discriminator {name[:40]!r} is not known; known are dcgan:WIDTH and dense:WIDTH")
    if not 1 <= (width := int(digits)) <= WIDEST:
        raise Malformed(f"the discriminator {name!r} is too wide or has no width; 1 to {WIDEST} are built")
    return DcganDiscriminator(shape, classes, width, "group") if kind == "dcgan" else Dense(shape, classes, width)


def initialise(net: nn.Module, generator: torch.Generator) -> nn.Module:
    """DCGAN's start for convolutions; linear layers by He's rule for LeakyReLU."""
    with torch.no_grad():
        for m in net.modules():
            if isinstance(m, nn.Conv2d):
                m.weight.normal_(0, 0.02, generator=generator)
            elif isinstance(m, nn.Linear):
                m.weight.normal_(0, math.sqrt(2 / m.in_features), generator=generator)
            if isinstance(m, nn.Conv2d | nn.Linear) and m.bias is not None:
                m.bias.zero_()
    return net
