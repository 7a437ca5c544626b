"""FID's network: Inception-v3 (Szegedy et al. 2016) with the TensorFlow weights of 2015-12-05, up to its last pool.

It differs from later versions as the original graph does: BatchNorm's ε is 1e-3, average pools do not count padding,
and the last block uses a maximum pool. Layers have the names of pytorch-fid, whose file of weights is downloaded once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitrail.nets.precision import Precision, autocast
from vitrail.nets.pretrained import AGAIN, find_weights, read_tensors, take
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.paths import data_home as default_home

URL = "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/pt_inception-2015-12-05-6726825d.pth"
SMALLER = "inception_v3_fid_pool3_fp16.safetensors"  # the same in half precision, without the class head

SIDE = 299  # all images are resized to this side
TOGETHER = 8  # images per pass: more take more memory and, on a CPU, more time per image
EPSILON = 1e-3

Kernel = tuple[int, int]
Step = tuple[int, *tuple[Kernel, ...]]  # channels and a kernel; several kernels all read the previous step
Branches = dict[str, list[Step]]
ONE, THREE, FIVE, ROW, COLUMN = (1, 1), (3, 3), (5, 5), (1, 7), (7, 1)

# The branches of the blocks by the side of their grid, which is 35 at first and is halved twice.
AT_35: Branches = {
    "branch1x1": [(64, ONE)],
    "branch5x5": [(48, ONE), (64, FIVE)],
    "branch3x3dbl": [(64, ONE), (96, THREE), (96, THREE)],
}
TO_17: Branches = {"branch3x3": [(384, THREE)], "branch3x3dbl": [(64, ONE), (96, THREE), (96, THREE)]}
TO_8: Branches = {
    "branch3x3": [(192, ONE), (320, THREE)],
    "branch7x7x3": [(192, ONE), (192, ROW), (192, COLUMN), (192, THREE)],
}
AT_8: Branches = {
    "branch1x1": [(320, ONE)],
    "branch3x3": [(384, ONE), (384, (1, 3), (3, 1))],
    "branch3x3dbl": [(448, ONE), (384, THREE), (384, (1, 3), (3, 1))],
}


def at_17(width: int) -> Branches:
    """Return the branches at 17x17, whose 7x7 kernels are factored into rows and columns of this width."""
    return {
        "branch1x1": [(192, ONE)],
        "branch7x7": [(width, ONE), (width, ROW), (192, COLUMN)],
        "branch7x7dbl": [(width, ONE), (width, COLUMN), (width, ROW), (width, COLUMN), (192, ROW)],
    }


class Unit(nn.Conv2d):
    """A convolution with its BatchNorm folded into weight and bias, then ReLU."""

    def __init__(self, inside: int, outside: int, kernel: Kernel, stride: int = 1, padded: bool = True) -> None:
        super().__init__(inside, outside, kernel, stride, (kernel[0] // 2, kernel[1] // 2) if padded else 0)

    def forward(self, x: Tensor) -> Tensor:
        """Return an output of the size of x if the unit is padded and has no stride."""
        return super().forward(x).relu_()


class Block(nn.Module):
    """Parallel branches and a pool, followed by a 1x1 unit of `pooled` channels; if 0, the grid is halved instead."""

    def __init__(self, inside: int, branches: Branches, pool: nn.Module, pooled: int = 0) -> None:
        super().__init__()
        self.chains = [self._chain(inside, branch, steps, halve=not pooled) for branch, steps in branches.items()]
        self.pool = pool
        self.branch_pool = Unit(inside, pooled, ONE) if pooled else nn.Identity()

    def _chain(self, inside: int, branch: str, steps: list[Step], halve: bool) -> list[list[Unit]]:
        chain = []
        for i, (outside, *kernels) in enumerate(steps, 1):
            name = f"{branch}_{i}" if len(steps) > 1 else branch
            last = halve and i == len(steps)
            units = [Unit(inside, outside, k, stride=2 if last else 1, padded=not last) for k in kernels]
            for unit, letter in zip(units, "ab" if len(units) > 1 else ("",), strict=True):
                self.add_module(name + letter, unit)
            chain.append(units)
            inside = outside
        return chain

    def forward(self, x: Tensor) -> Tensor:
        """Return the channels of all branches in order, the pool's last."""
        outputs = []
        for chain in self.chains:
            found = [x]
            for units in chain:
                found = [unit(found[0]) for unit in units]
            outputs += found
        return torch.cat([*outputs, self.branch_pool(self.pool(x))], dim=1)


def average() -> nn.Module:
    """Return a pool that averages those of nine neighbours that are inside the image."""
    return nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)


class Inception(nn.Module):
    """The frozen FID network: images in [-1, 1], grey or colour, of any size, to 2,048 features each.

    Its weights are random; `load_inception` returns the trained network.

    Examples:
        >>> Inception()(torch.zeros(2, 1, 32, 32)).shape
        torch.Size([2, 2048])
    """

    num_features = 2048
    precision: Precision = "float32"
    """Arithmetic of the convolutions; features are float32."""

    def __init__(self) -> None:
        super().__init__()
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            Conv2d_1a_3x3=Unit(3, 32, THREE, stride=2, padded=False),
            Conv2d_2a_3x3=Unit(32, 32, THREE, padded=False),
            Conv2d_2b_3x3=Unit(32, 64, THREE),
            pool_1=nn.MaxPool2d(3, stride=2),
            Conv2d_3b_1x1=Unit(64, 80, ONE),
            Conv2d_4a_3x3=Unit(80, 192, THREE, padded=False),
            pool_2=nn.MaxPool2d(3, stride=2),
            Mixed_5b=Block(192, AT_35, average(), 32),
            Mixed_5c=Block(256, AT_35, average(), 64),
            Mixed_5d=Block(288, AT_35, average(), 64),
            Mixed_6a=Block(288, TO_17, nn.MaxPool2d(3, stride=2)),
            Mixed_6b=Block(768, at_17(128), average(), 192),
            Mixed_6c=Block(768, at_17(160), average(), 192),
            Mixed_6d=Block(768, at_17(160), average(), 192),
            Mixed_6e=Block(768, at_17(192), average(), 192),
            Mixed_7a=Block(768, TO_8, nn.MaxPool2d(3, stride=2)),
            Mixed_7b=Block(1280, AT_8, average(), 192),
            Mixed_7c=Block(2048, AT_8, nn.MaxPool2d(3, stride=1, padding=1), 192),
        )
        self.layers = nn.Sequential(layers)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # twice as fast on a CPU
        self.eval().requires_grad_(False)

    def train(self, mode: bool = True) -> Inception:  # noqa: ARG002
        """Stay in evaluation mode: the network is never trained."""
        return super().train(False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean of every channel of the last block: (n, 2048), all at least 0."""
        if x.ndim != 4 or x.shape[1] not in (1, 3) or not x.is_floating_point():
            raise VitrailError(
                f"features of an array {tuple(x.shape)}, {x.dtype}: expected images (n, 1 or 3, height, width), floats "
                "in [-1, 1]"
            )
        return torch.cat([self._pool3(part) for part in x.split(TOGETHER)])

    def _pool3(self, x: Tensor) -> Tensor:
        # Resizing images in [-1, 1] equals resizing them in [0, 1] and scaling by 2x - 1: the weights add up to one.
        y = functional.interpolate(x.expand(-1, 3, -1, -1), (SIDE, SIDE), mode="bilinear", align_corners=False)
        with autocast(x, self.precision):
            out = self.layers(y.contiguous(memory_format=torch.channels_last))
        return out.float().mean(dim=(2, 3))


def load_inception(home: Path | None = None) -> Inception:
    """Load the FID network with its weights.

    Args:
        home: Folder for downloaded weights; by default vitrail's data folder.

    Raises:
        VitrailError: If the weights cannot be found or downloaded.
        Malformed: If their file is damaged or is of another network.
    """
    path = find_weights("fid", (SMALLER,), URL, home or default_home())
    tensors, net = read_tensors(path), Inception()
    for name, unit in net.layers.named_modules():
        if isinstance(unit, Unit) and unit.bias is not None:
            weight, bias = fold(tensors, name, unit.weight.shape, path)
            unit.weight.copy_(weight)
            unit.bias.copy_(bias)
    return net


def fold(tensors: Mapping[str, Tensor], name: str, shape: Sequence[int], path: Path) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the convolution that equals a convolution followed by its BatchNorm."""
    weight = take(tensors, f"{name}.conv.weight", shape, path).double()
    parts = ("weight", "bias", "running_mean", "running_var")
    gamma, beta, mean, variance = (take(tensors, f"{name}.bn.{part}", shape[:1], path).double() for part in parts)
    if variance.min() < 0:
        raise Malformed(f"{path}: {name}.bn.running_var is negative; expected variances. {AGAIN}")
    scale = gamma / (variance + EPSILON).sqrt()
    return weight * scale.view(-1, 1, 1, 1), beta - mean * scale
