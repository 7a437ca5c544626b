"""Discriminators by name and width, so that a client may choose its own and the server builds it from a message."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitrail.nets.dcgan import DcganDiscriminator
from vitrail.utils.errors import Malformed
from vitrail.utils.registry import Registry

MAX_WIDTH = 512
Shape = tuple[int, int, int]

DISCRIMINATORS: Registry[Callable[[Shape, int, int], nn.Module]] = Registry(
    "discriminator",
    "vitrail.discriminators",
    {
        "dcgan": ("vitrail.nets.discriminators:dcgan", "DCGAN's convolutions with GroupNorm"),
        "dense": ("vitrail.nets.discriminators:Dense", "two fully connected hidden layers"),
    },
)
"""Discriminators that a name such as "dcgan:32" selects; 32 is the width.

An entry is a class or function that is called as `entry(shape, classes, width)` and returns an `nn.Module` with
`forward(images, labels)`: images (n, *shape) in [-1, 1] and class indices (n,), or None without labels, to one logit
per image (n,). It must treat each image independently: no BatchNorm and no dropout. The server and all clients of a
run must have it registered.
"""


class Dense(nn.Module):
    """Pixels and label to a logit through two hidden layers."""

    def __init__(self, shape: Shape, classes: int, width: int) -> None:
        super().__init__()
        self.classes = classes
        first, second = nn.Linear(math.prod(shape) + classes, 4 * width), nn.Linear(4 * width, width)
        self.layers = nn.Sequential(first, nn.LeakyReLU(0.2), second, nn.LeakyReLU(0.2))
        self.last = nn.Linear(width, 1)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        x = x.flatten(1)
        if self.classes and y is not None:
            x = torch.cat([x, (y[:, None] == torch.arange(self.classes, device=y.device)).to(x.dtype)], 1)
        return self.last(self.layers(x)).flatten()


def dcgan(shape: Shape, classes: int, width: int) -> DcganDiscriminator:
    """Build DCGAN's discriminator with GroupNorm, which treats each image independently."""
    return DcganDiscriminator(shape, classes, width, "group")


def build_discriminator(name: str, shape: Shape, classes: int) -> nn.Module:
    """Build the discriminator that a name such as "dcgan:32" or "dense:64" selects.

    Args:
        name: An entry of DISCRIMINATORS, a colon and a width from 1 to 512.
        shape: Channels, height and width of an image.
        classes: Number of classes; 0 without labels.

    Raises:
        Malformed: If the name is not registered or the width is out of range.

    Examples:
        >>> sum(p.numel() for p in build_discriminator("dcgan:4", (1, 8, 8), 10).parameters())
        773

        Register your own:

        >>> @DISCRIMINATORS.register("one-linear", "one linear layer without labels")
        ... class Linear(nn.Module):
        ...     def __init__(self, shape, classes, width):
        ...         super().__init__()
        ...         self.layer = nn.Linear(math.prod(shape), 1)
        ...
        ...     def forward(self, images, labels=None):
        ...         return self.layer(images.flatten(1)).flatten()
        >>> build_discriminator("one-linear:1", (1, 8, 8), 0)(torch.zeros(3, 1, 8, 8)).shape
        torch.Size([3])
    """
    kind, _, digits = name.partition(":")
    if kind not in DISCRIMINATORS or not (digits.isascii() and digits.isdigit() and len(digits) <= 4):
        known = " and ".join(f"{entry}:WIDTH" for entry in DISCRIMINATORS)
        raise Malformed(f"the discriminator {name[:40]!r} is not known; known are {known}")
    if not 1 <= (width := int(digits)) <= MAX_WIDTH:
        raise Malformed(
            f"the discriminator {name!r} is too wide or has no width; expected a width from 1 to {MAX_WIDTH}"
        )
    return DISCRIMINATORS[kind](shape, classes, width)


def initialise(net: nn.Module, generator: torch.Generator) -> nn.Module:
    """Draw first weights: N(0, 0.02) for convolutions as in DCGAN, He's rule for linear layers with LeakyReLU.

    Other parameters of two or more dimensions are drawn from N(0, 0.02), too; other vectors keep their values.

    Args:
        net: A discriminator; it is changed in place.
        generator: Source of the random numbers.

    Returns:
        The network.
    """
    with torch.no_grad():
        for m in net.modules():
            if isinstance(m, nn.Linear):
                m.weight.normal_(0, math.sqrt(2 / m.in_features), generator=generator)
            else:
                for p in m.parameters(recurse=False):
                    if p.ndim > 1:
                        p.normal_(0, 0.02, generator=generator)
            if isinstance(m, nn.Conv2d | nn.Linear) and m.bias is not None:
                m.bias.zero_()
    return net
