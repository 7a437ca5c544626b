"""3x3 convolutions and a change of size as one 4x4 convolution: the same result by less than half the products."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def convolution_of_double(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """Nearest x2, then the convolution."""
    kernel = _widened(conv.weight.flip(2, 3)).transpose(0, 1)
    return F.conv_transpose2d(x, kernel, conv.bias, stride=2, padding=1)


def mean_of_convolution(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """The convolution, then means over 2x2."""
    return F.conv2d(x, _widened(conv.weight) / 4, conv.bias, stride=2, padding=1)


def _widened(kernel: Tensor) -> Tensor:
    """The sum of a 3x3 kernel at the four places that it has within 4x4."""
    return F.avg_pool2d(F.pad(kernel, (1, 1, 1, 1)), 2, stride=1) * 4
