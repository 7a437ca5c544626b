"""Convolutions joined with a change of size equal the two steps."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitrail.nets.resampling import convolution_of_double, mean_of_convolution


@pytest.mark.parametrize("size", [2, 8])
def test_joined_steps_equal_separate_steps_with_their_gradients(size):
    draw = torch.Generator().manual_seed(1)
    conv = nn.Conv2d(3, 5, 3, padding=1).double()
    x = torch.randn(2, 3, size, size, generator=draw, dtype=torch.float64)
    for joined, plain in (
        (convolution_of_double, lambda x, c: c(F.interpolate(x, scale_factor=2.0))),
        (mean_of_convolution, lambda x, c: F.avg_pool2d(c(x), 2)),
    ):
        a, b = joined(x, conv), plain(x, conv)
        assert torch.allclose(a, b, atol=1e-12)
        got, expected = (torch.autograd.grad(y.square().sum(), list(conv.parameters())) for y in (a, b))
        assert all(torch.allclose(g, e, atol=1e-9) for g, e in zip(got, expected, strict=True))
