"""Resizing of images."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from vitrail.data.resize import fit

RNG = np.random.default_rng(0)


def test_28_becomes_32_without_loss() -> None:
    pixels = RNG.integers(0, 256, (3, 1, 28, 28), np.uint8)
    out = fit(pixels, 32)
    assert np.array_equal(out[:, :, 2:-2, 2:-2], pixels)
    assert out.sum(dtype=int) == pixels.sum(dtype=int)


@pytest.mark.parametrize(
    ("side", "size"),
    [(64, 32), (8, 32), (28, 64), (100, 33), (28, 16), (28, 8), (178, 64), (33, 32), (1, 9), (9, 1), (500, 7)],
)
def test_resizing_equals_pil(side: int, size: int) -> None:
    pixels = RNG.integers(0, 256, (2, 3, side, side), np.uint8)
    for got, plane in zip(fit(pixels, size), pixels, strict=True):
        image = Image.fromarray(np.ascontiguousarray(plane.transpose(1, 2, 0)))
        expected = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR))
        assert np.array_equal(got.transpose(1, 2, 0), expected)


def test_shrinking_averages_all_pixels() -> None:
    stripes = np.zeros((1, 1, 64, 64), np.uint8)
    stripes[..., ::2] = 200
    assert np.abs(fit(stripes, 16)[0, 0, :, 2:-2].astype(int) - 100).max() <= 2


@pytest.mark.parametrize(("height", "width"), [(40, 30), (30, 40), (31, 40)])
def test_images_are_cropped_to_the_central_square(height: int, width: int) -> None:
    pixels = RNG.integers(0, 256, (1, 1, height, width), np.uint8)
    side = min(height, width)
    out = fit(pixels, side)
    top, left = (height - side) // 2, (width - side) // 2
    assert np.array_equal(out, pixels[:, :, top : top + side, left : left + side])
