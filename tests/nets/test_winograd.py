"""Fast convolutions compared with torch's in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.nets.winograd import DOUBLE, FOUR, ONE, TWO, Tile, convolve, tile_for, transform


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def fast(x: Tensor, weight: Tensor, tile: Tile, bias: Tensor | None = None) -> Tensor:
    """Convolve images (n, c, h, w)."""
    return convolve(x.permute(2, 3, 0, 1), transform(weight, tile), tile, bias).permute(2, 3, 0, 1)


def gradients(y: Tensor, *inputs: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(y, inputs, draw(*y.shape, seed=9)))


@pytest.mark.parametrize(
    ("h", "w"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (7, 14), (16, 16), (19, 37), (1, 6), (2, 3), (32, 32)]
)
def test_a_convolution_of_any_size_and_its_gradients_equal_torchs(h: int, w: int) -> None:
    x, weight = draw(3, 5, h, w, seed=1).requires_grad_(), draw(4, 5, 3, 3, seed=2).requires_grad_()
    tile = tile_for(h, w)
    got, expected = fast(x, weight, tile), F.conv2d(x, weight, padding=1)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradients(got, x, weight), gradients(expected, x, weight), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("size", [1, 3, 4, 8, 16, 21])
def test_doubling_equals_nearest_upsampling_and_a_convolution(size: int) -> None:
    x, weight = draw(2, 3, size, size, seed=1).requires_grad_(), draw(6, 3, 3, 3, seed=2).requires_grad_()
    got, expected = fast(x, weight, DOUBLE), F.conv2d(F.interpolate(x, scale_factor=2.0), weight, padding=1)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradients(got, x, weight), gradients(expected, x, weight), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("size", [1, 2, 9, 16])
def test_a_bias_adds_a_relu_whose_gradient_is_torchs(size: int) -> None:
    x, weight, bias = draw(2, 3, size, size, seed=1).requires_grad_(), draw(6, 3, 3, 3, seed=2), draw(6, seed=3)
    got, expected = fast(x, weight, tile_for(size, size), bias), F.relu(F.conv2d(x, weight, bias, padding=1))
    assert 0.1 < (expected > 0).double().mean() < 0.9
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradients(got, x), gradients(expected, x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("tile", "multiplications"), [(FOUR, 36), (DOUBLE, 25), (TWO, 9), (ONE, 1)])
def test_the_number_of_multiplications_of_a_tile(tile: Tile, multiplications: int) -> None:
    """A direct sum has nine per pixel, for 16, 16, 4 and 1 pixels."""
    assert len(transform(torch.zeros(1, 1, 3, 3), tile)) == multiplications


@pytest.mark.parametrize("tile", [FOUR, DOUBLE])
def test_single_precision_loses_at_most_one_digit(tile: Tile) -> None:
    x, weight = draw(8, 64, 16, 16, seed=1), draw(64, 64, 3, 3, seed=2)
    given = F.interpolate(x, scale_factor=2.0) if tile is DOUBLE else x
    exact, direct = F.conv2d(given, weight, padding=1), F.conv2d(given.float(), weight.float(), padding=1)
    error, least = ((y - exact).norm() / exact.norm() for y in (fast(x.float(), weight.float(), tile), direct))
    assert error < 10 * max(least.item(), 2e-7)


def test_repeated_gradients_have_the_same_bits() -> None:
    x, weight = draw(16, 32, 32, 32, dtype=torch.float32), draw(48, 32, 3, 3, dtype=torch.float32).requires_grad_()

    def once() -> bytes:
        y = fast(x.clone().requires_grad_(), weight, FOUR)
        (g,) = torch.autograd.grad(y.square().sum(), weight)
        return np.asarray(g).tobytes()

    assert len({once() for _ in range(5)}) == 1
