"""3x3 convolutions with a quarter of the multiplications (Winograd 1980; Lavin & Gray 2016), and their gradients.

The convolution of a row of pixels x with taps w is A((G w) ⊙ (B x)), tile by tile, with small fixed matrices; for an
image it is applied along both sides. In the order (h, w, n, c) all of it is products of contiguous matrices, which are
fast. In single precision it is two to five times less exact than a direct sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Matrix = NDArray[np.float64]
WIDE = 4  # tiles per patch: enough for large products, few enough that its matrices are not mostly zeros


@dataclass(frozen=True, eq=False)
class Tile:
    """The matrices of one tile: `step` pixels of a row, with their neighbours, become len(A) pixels."""

    B: Matrix
    G: Matrix
    A: Matrix
    step: int

    @property
    def up(self) -> int:
        """The factor by which a side grows."""
        return len(self.A) // self.step


def toom_cook(m: int, points: tuple[float, ...]) -> tuple[Matrix, Matrix, Matrix]:
    """Return B, G and A for m outputs: a product of polynomials at m + 1 points and infinity, transposed."""

    def powers(n: int) -> Matrix:
        return np.array([[p**j for j in range(n)] for p in points] + [[0.0] * (n - 1) + [1.0]])

    inverse: Matrix = np.linalg.inv(powers(m + 2)).astype(np.float64)
    return inverse.T, powers(3), powers(m).T


def doubling(B: Matrix, G: Matrix, A: Matrix) -> Tile:
    """Return the tile for a row whose pixels are doubled first; the product at the point -1 is zero and is skipped."""
    B = B @ np.repeat(np.eye(4), [1, 2, 2, 1], axis=0)
    used = np.abs(B).max(1) > 1e-9
    return Tile(B[used], G[used], A[:, used], 2)


FOUR = Tile(
    *toom_cook(4, (0, 0.75, -0.75, 1.5, -1.5)), 4
)  # of the points tried, those with the smallest rounding error
DOUBLE = doubling(*toom_cook(4, (0, 1, -1, 0.6, -0.6)))
TWO = Tile(  # a row of two pixels a, b: the middle tap of a + b is shared
    np.array([[0.0, 1, 1, 0], [0, 0, 1, 0], [0, 1, 0, 0]]),
    np.array([[0.0, 1, 0], [0, -1, 1], [1, -1, 0]]),
    np.array([[1.0, 1, 0], [1, 0, 1]]),
    2,
)
ONE = Tile(np.array([[0.0, 1, 0]]), np.array([[0.0, 1, 0]]), np.ones((1, 1)), 1)


def tile_for(h: int, w: int) -> Tile:
    """Return the tile for images of this height and width."""
    return {(1, 1): ONE, (2, 2): TWO}.get((h, w), FOUR)


def transform(weight: Tensor, tile: Tile) -> Tensor:
    """Return G w Gᵀ: a weight (out, in, 3, 3) as matrices (products, out, in)."""
    GG = torch.from_numpy(np.kron(tile.G, tile.G)).to(weight.dtype)
    taps = weight.reshape(-1, 9).T.contiguous()  # without the copy, the gradient is a slow product
    return (GG @ taps).view(len(GG), *weight.shape[:2])


def convolve(x: Tensor, U: Tensor, tile: Tile, bias: Tensor | None = None) -> Tensor:
    """Convolve x (h, w, n, c) with a transformed weight and zero padding; a bias adds itself and a ReLU.

    Args:
        x: Images in the order (h, w, n, c).
        U: The weight, from `transform`.
        tile: The tile that U was transformed for.
        bias: A bias (c,); it is frozen.

    Examples:
        >>> x, weight = torch.linspace(-1, 1, 384).view(8, 8, 2, 3), torch.linspace(-1, 1, 135).view(5, 3, 3, 3)
        >>> y = convolve(x, transform(weight, FOUR), FOUR)
        >>> plain = torch.conv2d(x.permute(2, 3, 0, 1), weight, padding=1)
        >>> torch.allclose(y.permute(2, 3, 0, 1), plain, atol=1e-4)
        True
    """
    out: Tensor = _Convolve.apply(x.contiguous(), U, bias, tile)  # type: ignore[no-untyped-call]
    return out


class _Convolve(torch.autograd.Function):
    """Convolution of one patch of a few tiles at a time, so that intermediate results stay in the CPU's cache."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, U: Tensor, bias: Tensor | None, tile: Tile) -> Tensor:
        (h, w, n, _), f, k = x.shape, len(tile.B), U.shape[1]
        out = x.new_empty(h * tile.up, w * tile.up, n, k)
        for down, right in _patches(tile, h, w, x.dtype):
            Y = torch.bmm(_analyse(x, down, right), U.mT).view(f, -1, n * k)
            Y = torch.bmm(right.A.expand(f, -1, -1), Y)
            y = out[down.written, right.written]
            torch.mm(down.A, Y.flatten(1), out=y.view(len(y), -1))
            if bias is not None:
                y.add_(bias).relu_()
        ctx.tile, ctx.shape = tile, x.shape
        passes, trains, *_ = ctx.needs_input_grad
        ctx.save_for_backward(x if trains else None, U if passes else None, None if bias is None else out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        """Apply the transposed products in reverse; a bias is frozen."""
        x, U, out = ctx.saved_tensors
        (h, w, n, c), f, k, grad = ctx.shape, len(ctx.tile.B), grad.shape[-1], grad.contiguous()
        dx = None if U is None else grad.new_zeros(h, w, n, c)
        dU = None if x is None else grad.new_zeros(f * f, k, c)
        for down, right in _patches(ctx.tile, h, w, grad.dtype):
            dy = grad[down.written, right.written]
            if out is not None:
                dy = torch.ops.aten.threshold_backward(dy, out[down.written, right.written], 0)  # the ReLU's
            dY = torch.mm(down.A.T, dy.flatten(1)).view(f, -1, n * k)
            dY = torch.bmm(right.A.T.expand(f, -1, -1), dY).view(f * f, -1, k)
            if dU is not None:
                dU.baddbmm_(dY.mT, _analyse(x, down, right))
            if dx is not None:
                dX = torch.bmm(right.B.T.expand(f, -1, -1), torch.bmm(dY, U).view(f, -1, n * c))
                read = dx[down.read, right.read]
                read.view(len(read), -1).addmm_(down.B.T, dX.flatten(1))
        return dx, dU, None, None


class _Piece(NamedTuple):
    """A piece of a side: the pixels it reads and writes, and its B and A, sorted by product, then by tile."""

    read: slice
    written: slice
    B: Tensor
    A: Tensor


def _analyse(x: Tensor, down: _Piece, right: _Piece) -> Tensor:
    """Return B x Bᵀ of a patch: (products, tiles and images, channels)."""
    (n, c), f = x.shape[2:], len(down.B)
    X = torch.mm(down.B, x[down.read, right.read].flatten(1)).view(f, -1, n * c)
    return torch.bmm(right.B.expand(f, -1, -1), X).view(f * f, -1, c)


@cache
def _patches(tile: Tile, h: int, w: int, dtype: torch.dtype) -> list[tuple[_Piece, _Piece]]:
    """Divide an image into patches."""
    return list(product(_pieces(tile, h, 1, dtype), _pieces(tile, w, WIDE, dtype)))


def _pieces(tile: Tile, size: int, tiles: int, dtype: torch.dtype) -> list[_Piece]:
    """Divide a side of `size` pixels into pieces of `tiles` tiles; pixels beyond the edges are zero and are skipped."""
    (f, reach), each, tiles = tile.B.shape, len(tile.A), min(tiles, -(-size // tile.step))
    step, pieces = tiles * tile.step, []
    B, A = np.zeros((f, tiles, step - tile.step + reach)), np.zeros((tiles, each, f, tiles))
    for i in range(tiles):
        B[:, i, i * tile.step :][:, :reach] = tile.B
        A[i, :, :, i] = tile.A
    for start in range(0, size, step):
        low, high = max(start - 1, 0), min(start - 1 + B.shape[2], size)
        written = slice(start * tile.up, min(start + step, size) * tile.up)
        b = B.reshape(f * tiles, -1)[:, low - start + 1 : high - start + 1]
        a = A.reshape(tiles * each, -1)[: written.stop - written.start]
        pieces.append(_Piece(slice(low, high), written, torch.tensor(b, dtype=dtype), torch.tensor(a, dtype=dtype)))
    return pieces
