"""Operations on (h, w, n, c) compared with torch's on (n, c, h, w)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.nets.feature_network import halve
from vitrail.nets.pixels import differentiates, mix_channels, narrow, normalise, resize, widen


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pixels(x: Tensor) -> Tensor:
    return x.permute(2, 3, 0, 1).contiguous()


def same(got: Tensor, expected: Tensor, *inputs: Tensor) -> None:
    """Check that values and gradients are equal."""
    torch.testing.assert_close(got, expected)
    g = draw(*expected.shape, seed=9)
    torch.testing.assert_close(torch.autograd.grad(got, inputs, g), torch.autograd.grad(expected, inputs, g))


@pytest.mark.parametrize("pool", ["average", "max"])
@pytest.mark.parametrize("size", [1, 4, 7])
def test_resize_pools_and_doubles_as_torch_does(pool: str, size: int) -> None:
    x = draw(3, 5, size, size).requires_grad_()
    same(resize(pixels(x), lambda t: halve(t, pool)).permute(2, 3, 0, 1), halve(x, pool), x)
    twice = F.interpolate(x, scale_factor=2.0)
    same(resize(pixels(x), lambda t: F.interpolate(t, scale_factor=2.0)).permute(2, 3, 0, 1), twice, x)


def test_the_gradient_of_equal_pixels_goes_to_the_same_pixel_as_in_torch() -> None:
    x = torch.ones(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    same(resize(pixels(x), lambda t: halve(t, "max")).permute(2, 3, 0, 1), halve(x, "max"), x)


def test_normalise_is_batchnorm_and_relu_with_the_same_statistics() -> None:
    x = draw(6, 4, 3, 3).requires_grad_()
    a, b = (nn.BatchNorm2d(4, affine=False).double() for _ in range(2))
    same(normalise(a, pixels(x)).permute(2, 3, 0, 1), F.relu(b(x)), x)
    torch.testing.assert_close(a.state_dict(), b.state_dict())
    same(normalise(a.eval(), pixels(x)).permute(2, 3, 0, 1), F.relu(b.eval()(x)), x)


def test_mix_channels_is_a_one_by_one_convolution() -> None:
    x, weight = draw(2, 4, 3, 3).requires_grad_(), draw(6, 4, 1, 1, seed=1).requires_grad_()
    same(mix_channels(pixels(x), weight).permute(2, 3, 0, 1), F.conv2d(x, weight), x, weight)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [1, 2, 8])
def test_widen_and_narrow_are_three_by_three_convolutions(channels: int, size: int) -> None:
    few, many = draw(2, channels, size, size).requires_grad_(), draw(2, 7, size, size, seed=1).requires_grad_()
    out, into = draw(7, channels, 3, 3, seed=2), draw(channels, 7, 3, 3, seed=3).requires_grad_()
    bias = draw(7, seed=4)
    same(widen(few, out, bias).permute(2, 3, 0, 1), F.relu(F.conv2d(few, out, bias, padding=1)), few)
    same(narrow(pixels(many), into), F.conv2d(many, into, padding=1), many, into)


def test_the_layout_is_used_only_with_gradients() -> None:
    x = torch.ones(1)
    assert not differentiates(x)
    assert differentiates(x.requires_grad_())
    with torch.no_grad():
        assert not differentiates(x)
