"""Resizing of images to one square size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitrail.utils.errors import VitrailError

AT_ONCE = 1024  # planes
BUDGET = 2**26  # bytes of float64 values in memory at once
BITS = 22  # of a weight: PIL's precision for 8-bit images


def side(size: int | None, usual: int = 32) -> int:
    """Return the requested size, or else the usual one; raise VitrailError if it is out of range."""
    size = usual if size is None else size
    if not 1 <= size <= 4096:
        raise VitrailError(f"size={size}: must be between 1 and 4096, such as {usual}")
    return size


def fit(pixels: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Crop images to their central square and resize them.

    28x28 becomes 32x32 by a border of zeros, without loss. All other sizes are interpolated bilinearly with
    antialiasing: equal to PIL's `resize` in every bit, but for many images at once.

    Args:
        pixels: Images of shape (n, c, h, w).
        size: Height and width of the result.

    Examples:
        >>> fit(np.full((1, 1, 28, 28), 9, np.uint8), 32)[0, 0, 0:3, 5]
        array([0, 0, 9], dtype=uint8)
    """
    n, c, height, width = pixels.shape
    short = min(height, width)
    top, left = (height - short) // 2, (width - short) // 2
    square = pixels[:, :, top : top + short, left : left + short]
    if short == size:
        return np.ascontiguousarray(square)
    if (short, size) == (28, 32):
        return np.pad(square, ((0, 0), (0, 0), (2, 2), (2, 2)))
    K = _weights(short, size)
    out = np.empty((n, c, size, size), np.uint8)
    step = max(1, min(AT_ONCE, BUDGET // (8 * short * (short + size))) // c)
    for i in range(0, n, step):
        across = _resize_rows(square[i : i + step], K)
        out[i : i + step] = _resize_rows(across.swapaxes(2, 3), K).swapaxes(2, 3)
    return out


def _resize_rows(pixels: NDArray[np.uint8], K: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Multiply each row by the weights and round to bytes, at most `BUDGET` bytes at once."""
    size, short = K.shape
    rows = pixels.reshape(-1, short)
    out = np.empty((len(rows), size), np.uint8)
    step = max(1, BUDGET // (8 * (short + size)))
    for i in range(0, len(rows), step):
        sums = rows[i : i + step] @ K.T  # integers far below 2^53, so they are exact
        sums += 2 ** (BITS - 1)
        sums /= 2**BITS
        out[i : i + step] = np.floor(sums, out=sums).clip(0, 255, out=sums)
    return out.reshape(*pixels.shape[:-1], size)


def _weights(before: int, after: int) -> NDArray[np.float64]:
    """Return the weight of each old pixel of a row in each new one: a triangle filter, in integers times 2^-22."""
    scale = before / after
    wide = max(scale, 1.0)  # half the width of the triangle
    centres = (np.arange(after) + 0.5) * scale
    first = np.maximum(np.floor(centres - wide + 0.5), 0)[:, None]
    last = np.minimum(np.floor(centres + wide + 0.5), before)[:, None]
    x = np.arange(before)
    w = np.maximum(1 - np.abs(x - centres[:, None] + 0.5) / wide, 0) * ((x >= first) & (x < last))
    return np.floor(w / w.sum(1, keepdims=True) * 2**BITS + 0.5)
