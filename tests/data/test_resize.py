"""Bringing pictures to one size, and which are held out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitrail.data.pictures import Pictures
from vitrail.data.resize import fit
from vitrail.data.split import hold_out

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
def test_colour_is_resized_as_pil_does_it(side: int, size: int) -> None:
    pixels = RNG.integers(0, 256, (2, 3, side, side), np.uint8)
    for got, picture in zip(fit(pixels, size), pixels, strict=True):
        image = Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0)))
        expected = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR))
        assert np.array_equal(got.transpose(1, 2, 0), expected)


def test_shrinking_averages_and_does_not_skip() -> None:
    stripes = np.zeros((1, 1, 64, 64), np.uint8)
    stripes[..., ::2] = 200
    assert np.abs(fit(stripes, 16)[0, 0, :, 2:-2].astype(int) - 100).max() <= 2


@pytest.mark.parametrize(("height", "width"), [(40, 30), (30, 40), (31, 40)])
def test_the_central_square_is_kept(height: int, width: int) -> None:
    pixels = RNG.integers(0, 256, (1, 1, height, width), np.uint8)
    side = min(height, width)
    out = fit(pixels, side)
    top, left = (height - side) // 2, (width - side) // 2
    assert np.array_equal(out, pixels[:, :, top : top + side, left : left + side])


@given(
    labels=st.lists(st.integers(0, 4), min_size=2, max_size=80),
    share=st.floats(0, 0.7),
)
def test_each_label_keeps_its_share_to_within_one_picture(labels: list[int], share: float) -> None:
    n = len(labels)
    pixels = np.arange(n, dtype=np.uint8).reshape(n, 1, 1, 1)
    train, test = hold_out(Pictures(pixels, np.array(labels)), share)
    assert sorted([*train.pixels.ravel(), *test.pixels.ravel()]) == list(range(n))
    assert test.labels is not None
    for k in set(labels):
        assert abs((test.labels == k).sum() - share * labels.count(k)) <= 1


def test_which_pictures_are_held_out_never_changes() -> None:
    pixels = np.arange(40, dtype=np.uint8).reshape(40, 1, 1, 1)
    _, test = hold_out(Pictures(pixels, np.arange(40) % 2), 0.2)
    assert test.pixels.ravel().tolist() == [6, 17, 19, 20, 25, 26, 31, 32]
