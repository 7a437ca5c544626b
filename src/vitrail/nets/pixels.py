"""Operations other than 3x3 convolutions (winograd.py) on images in the order (h, w, n, c).

To torch, such images are one image of n·c channels in its channels-last format, for which it has fast kernels.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def differentiates(x: Tensor) -> bool:
    """Return whether this order is used for x: with gradients on a CPU. Otherwise torch's layers are faster."""
    return x.device.type == "cpu" and x.requires_grad and torch.is_grad_enabled()


def resize(x: Tensor, how: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply an operation on (n, c, h, w) that treats each image and channel independently, such as pooling.

    Examples:
        >>> resize(torch.ones(4, 6, 2, 3), lambda t: F.max_pool2d(t, 2)).shape
        torch.Size([2, 3, 2, 3])
    """
    n, c = x.shape[2:]
    out = how(x.flatten(2)[None].permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    return out.reshape(*out.shape[1:3], n, c)


def normalise(bn: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """Apply BatchNorm and ReLU."""
    return F.relu_(bn(x.view(-1, x.shape[-1], 1, 1))).view_as(x)


def mix_channels(x: Tensor, weight: Tensor) -> Tensor:
    """Apply a 1x1 convolution."""
    return (x.view(-1, x.shape[-1]) @ weight.flatten(1).T).view(*x.shape[:-1], -1)


def widen(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply a 3x3 convolution and ReLU to few channels, given as (n, c, h, w): nine shifted images times one matrix."""
    x = F.pad(x.permute(1, 2, 3, 0), (0, 0, 1, 1, 1, 1))
    c, h, w, n = x.shape[0], x.shape[1] - 2, x.shape[2] - 2, x.shape[3]
    shifted = torch.stack([x[:, a : a + h, b : b + w] for a in range(3) for b in range(3)])
    taps = weight.permute(2, 3, 1, 0).reshape(9 * c, -1)
    return F.relu_(torch.addmm(bias, shifted.view(9 * c, -1).T, taps)).view(h, w, n, -1)


def narrow(x: Tensor, weight: Tensor) -> Tensor:
    """Apply a 3x3 convolution to few channels, returned as (n, c, h, w): one matrix product, then nine shifted sums."""
    h, w, n, c = x.shape
    by_tap = weight.permute(2, 3, 0, 1).reshape(-1, c).contiguous()  # in this order its gradient is a fast product
    taps = by_tap @ x.view(-1, c).T
    y = F.pad(taps.view(9, -1, h, w, n), (0, 0, 1, 1, 1, 1))
    shifted = [y[3 * a + b, :, a : a + h, b : b + w] for a in range(3) for b in range(3)]
    return torch.stack(shifted).sum(0).permute(3, 0, 1, 2)
