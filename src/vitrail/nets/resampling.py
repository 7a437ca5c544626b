"""3x3 convolutions joined with a change of size: one 4x4 convolution with less than half the multiplications."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def convolution_of_double(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """Upsample by nearest neighbour x2, then convolve."""
    kernel = _widened(conv.weight.flip(2, 3)).transpose(0, 1)
    return F.conv_transpose2d(x, kernel, conv.bias, stride=2, padding=1)


def mean_of_convolution(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """Convolve, then average over 2x2 pixels."""
    return F.conv2d(x, _widened(conv.weight) / 4, conv.bias, stride=2, padding=1)


def _widened(kernel: Tensor) -> Tensor:
    """Return the sum of a 3x3 kernel at its four positions within 4x4."""
    return F.avg_pool2d(F.pad(kernel, (1, 1, 1, 1)), 2, stride=1) * 4
