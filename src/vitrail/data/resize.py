"""Bringing pictures to one square size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.errors import VitrailError


def side(size: int | None, usual: int = 32) -> int:
    """The size asked for, or else the usual one."""
    size = usual if size is None else size
    if not 1 <= size <= 4096:
        raise VitrailError(f"size={size}: must be between 1 and 4096, such as {usual}")
    return size


def fit(pixels: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Pictures (n, c, h, w) cropped to their central square and brought to size x size.

    28x28 becomes 32x32 by a border of zeros, which loses nothing; everything else is interpolated bilinearly
    and, when it shrinks, over all the pixels that fall into one.

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
    out = np.empty((n, c, size, size), np.uint8)
    for i in range(n):
        for j in range(c):  # plane by plane is what PIL does inside for colour pictures
            plane = Image.fromarray(np.ascontiguousarray(square[i, j]))
            out[i, j] = np.asarray(plane.resize((size, size), Image.Resampling.BILINEAR))
    return out
