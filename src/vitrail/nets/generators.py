"""Generators by name: noise, and labels where there are any, to images in [-1, 1]."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.utils.errors import VitrailError
from vitrail.utils.registry import Registry

Shape = tuple[int, int, int]

_SUMMARIES = {
    "small": "residual, 128 to 16 channels, for a CPU",
    "resnet": "the PRISM paper's residual network, 512 to 64 channels at 32x32, 1024 to 64 at 64x64",
    "sngan": "SNGAN's residual network (Miyato et al. 2018), 256 channels throughout",
    "dcgan": "DCGAN's transposed convolutions, 512 to 128 channels at 32x32, 1024 to 128 at 64x64",
    "smooth": "residual, 128 to 16 channels at 32x32, affine BatchNorm, bilinear upsampling: for trained weights",
}

GENERATORS: Registry[Callable[[Shape, int, float], nn.Module]] = Registry(
    "generator", "vitrail.generators", {name: (f"{__name__}:{name}", text) for name, text in _SUMMARIES.items()}
)
"""Generators that `generator=NAME` accepts.

An entry is a class or function that is called as `entry(shape, classes, width)`: channels, height and width of an
image; the number of classes, 0 without labels; and the channel multiplier. It returns an `nn.Module` with an integer
attribute `z`, the number of noise dimensions, and `forward(z, labels)`: noise (n, z) and class indices (n,), or None
without labels, to images (n, *shape) in [-1, 1].

Methods that train a mask replace all parameters by random signs times sqrt(2/fan_in), so layers should have no bias
and BatchNorm no affine parameters. Tensors that are not parameters must be buffers (`register_buffer`), because a
network's memory is computed on the meta device before it is built.
"""


def build_generator(name: str, shape: Shape, classes: int, width: float = 1.0) -> Any:
    """Build a generator by name.

    Args:
        name: One of GENERATORS.
        shape: Channels, height and width of an image.
        classes: Number of classes; 0 without labels.
        width: Channel multiplier.

    Returns:
        The untrained network, on torch's default device.

    Raises:
        VitrailError: If the name is not registered, the size is not possible, or a registered generator does not
            behave as GENERATORS documents.

    Examples:
        >>> sum(p.numel() for p in build_generator("resnet", (1, 32, 32), 0).parameters())
        3543616

        Register your own:

        >>> @GENERATORS.register("tiny", "one transposed convolution")
        ... class Tiny(nn.Module):
        ...     def __init__(self, shape, classes, width):
        ...         super().__init__()
        ...         self.z, self.classes = 16, classes
        ...         self.layer = nn.ConvTranspose2d(16 + classes, shape[0], shape[1], bias=False)
        ...
        ...     def forward(self, z, labels):
        ...         return torch.tanh(self.layer(with_label(z, labels, self.classes)[:, :, None, None]))
        >>> build_generator("tiny", (1, 8, 8), 2)(torch.zeros(5, 16), torch.zeros(5, dtype=torch.int64)).shape
        torch.Size([5, 1, 8, 8])
    """
    if name not in GENERATORS:
        raise VitrailError(f"generator={name} is not registered; known are {', '.join(GENERATORS)}")
    make = GENERATORS[name]
    if make not in _BUILTIN:
        _check_registered(make, name, shape, classes, width)
    return make(shape, classes, width)


@cache
def _check_registered(make: Callable[..., nn.Module], name: str, shape: Shape, classes: int, width: float) -> None:
    """Try a registered generator on the meta device, where tensors have no memory."""
    expected = f"generator={name}: expected an nn.Module that is called as net(z, labels)"
    try:
        with torch.device("meta"), torch.no_grad():
            net: Any = make(shape, classes, width)
            z = net.z
            if type(z) is not int or z < 1:
                raise VitrailError(f"{expected} and has a positive integer attribute z; its z is {z!r}")
            images = net(torch.empty(2, z), torch.zeros(2, dtype=torch.int64) if classes else None)
    except VitrailError:
        raise
    except Exception as e:  # of any kind: the code is not ours
        raise VitrailError(f"{expected}; a trial on the meta device failed ({type(e).__name__}: {e})") from e
    if tuple(images.shape) != (2, *shape):
        raise VitrailError(f"{expected} and returns images {(2, *shape)} for 2 images; it returned {(*images.shape,)}")
    for part, module in net.named_modules():
        if loose := [k for k, v in vars(module).items() if isinstance(v, Tensor)]:
            raise VitrailError(f"{expected}; store {part or type(net).__name__}.{loose[0]} with register_buffer")


def num_doublings(size: int) -> int:
    """Return how often 4x4 pixels are doubled to reach an image's size.

    Raises:
        VitrailError: If the size is not 8, 16, 32, 64, ...

    Examples:
        >>> num_doublings(8), num_doublings(32), num_doublings(64)
        (1, 3, 4)
    """
    n = int(math.log2(size)) - 2
    if n < 1 or 4 << n != size:
        raise VitrailError(f"size={size}: these generators make squares of 8, 16, 32, 64, ... pixels; set size=32")
    return n


class Block(nn.Module):
    """Residual up-block: BN, ReLU, nearest x2, conv3x3, BN, ReLU, conv3x3, plus a bypass of conv1x1 and nearest x2."""

    affine = False  # of BatchNorm

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inside, affine=self.affine)
        self.conv1 = nn.Conv2d(inside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside, affine=self.affine)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bypass = nn.Conv2d(inside, outside, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        # One expression: each large feature map is freed as soon as the next exists.
        h = self.conv2(F.relu(self.bn2(self.conv1(upsample_nearest(F.relu(self.bn1(x)))))))
        out: Tensor = upsample_nearest(self.bypass(x)).add_(h)
        return out


class SmoothBlock(Block):
    """Block for trained weights: affine BatchNorm, and bilinear upsampling after the first convolution."""

    affine = True

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv2(F.relu(self.bn2(upsample_bilinear(self.conv1(F.relu(self.bn1(x)))))))
        out: Tensor = upsample_bilinear(self.bypass(x)).add_(h)
        return out


def upsample_nearest(x: Tensor) -> Tensor:
    """Upsample by nearest neighbour x2."""
    return F.interpolate(x, scale_factor=2.0)


def upsample_bilinear(x: Tensor) -> Tensor:
    """Upsample bilinearly x2, which leaves no blocks of equal pixels."""
    return F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)


class ResNet(nn.Module):
    """PRISM's generator (its Table 4), without biases or affine BatchNorm; a label joins the noise as one-hot.

    With `smooth`, it has smooth blocks and affine BatchNorm.
    """

    def __init__(self, shape: Shape, classes: int, z: int, widths: tuple[int, ...], smooth: bool = False) -> None:
        super().__init__()
        self.z, self.classes, self.shape = z, classes, shape
        self.first = nn.ConvTranspose2d(z + classes, widths[0], 4, bias=False)
        block = SmoothBlock if smooth else Block
        self.blocks = nn.Sequential(*(block(a, b) for a, b in pairwise(widths)))
        self.bn = nn.BatchNorm2d(widths[-1], affine=smooth)
        self.last = nn.Conv2d(widths[-1], shape[0], 3, padding=1, bias=False)

    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        z = with_label(z, y, self.classes)
        h = (z @ self.first.weight.flatten(1)).view(-1, self.first.out_channels, 4, 4)  # self.first of one pixel
        h = self.blocks(h.contiguous(memory_format=torch.channels_last))
        return torch.tanh(self.last(F.relu(self.bn(h))))

    def feature_maps(self, side: int) -> list[tuple[int, int]]:
        """Return (channels, height) of the largest feature maps: each block doubles before its first convolution."""
        blocks: Any = self.blocks
        maps = [(max(b.conv1.in_channels, b.conv1.out_channels), 8 << i) for i, b in enumerate(blocks)]
        return [*maps, (self.last.out_channels, side)]


class DcGan(nn.Module):
    """DCGAN's generator (Radford, Metz, Chintala 2016) adapted to masks: no biases, no affine BatchNorm."""

    def __init__(self, shape: Shape, classes: int, z: int, widths: tuple[int, ...]) -> None:
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

    def feature_maps(self, side: int) -> list[tuple[int, int]]:  # noqa: ARG002
        """Return (channels, height) of every feature map."""
        return transposed_maps(self)


def transposed_maps(net: nn.Module) -> list[tuple[int, int]]:
    """Return (channels, height) of the outputs of transposed convolutions: 4x4, then doubled each time."""
    layers = [m for m in net.modules() if isinstance(m, nn.ConvTranspose2d)]
    return [(m.out_channels, 4 << i) for i, m in enumerate(layers)]


def with_label(z: Tensor, y: Tensor | None, classes: int) -> Tensor:
    """Append labels to noise as one-hot vectors, scaled by sqrt(classes) to match the noise's variance.

    Examples:
        >>> with_label(torch.zeros(1, 2), torch.tensor([3]), 4)
        tensor([[0., 0., 0., 0., 0., 2.]])
    """
    if not classes or y is None:
        return z
    return torch.cat([z, F.one_hot(y, classes).to(z.dtype) * math.sqrt(classes)], 1)


_SMALL = (128, 96, 64, 48, 32, 16)  # widths from 4x4 on, the last at the size of the image


def small(shape: Shape, classes: int, width: float) -> ResNet:
    """Build a narrow residual network."""
    return ResNet(shape, classes, 64, _scaled(_SMALL[-num_doublings(shape[1]) - 1 :], width))


def resnet(shape: Shape, classes: int, width: float) -> ResNet:
    """Build the PRISM paper's residual network."""
    return ResNet(shape, classes, 128, _scaled((64 << i for i in range(num_doublings(shape[1]), -1, -1)), width))


def sngan(shape: Shape, classes: int, width: float) -> ResNet:
    """Build SNGAN's residual network."""
    return ResNet(shape, classes, 128, _scaled((256,) * (num_doublings(shape[1]) + 1), width))


def dcgan(shape: Shape, classes: int, width: float) -> DcGan:
    """Build DCGAN's generator."""
    return DcGan(shape, classes, 100, _scaled((128 << i for i in range(num_doublings(shape[1]) - 1, -1, -1)), width))


_SMOOTH = (192, 160, 128, 64, 48, 16)  # widths from 4x4 on, the last at the size of the image


def smooth(shape: Shape, classes: int, width: float) -> ResNet:
    """Build a residual network for trained weights."""
    widths = _scaled(_SMOOTH[-num_doublings(shape[1]) - 1 :], width)
    return ResNet(shape, classes, 64, widths, smooth=True)


def _scaled(widths: Iterable[int], width: float) -> tuple[int, ...]:
    return tuple(max(4, round(w * width)) for w in widths)


_BUILTIN = (small, resnet, sngan, dcgan, smooth)
