"""The hold-out split of data without a test set."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.data.dataset import Images
from vitrail.data.holdout import hold_out
from vitrail.utils.errors import VitrailError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (200, 1, 8, 8), np.uint8)


def content(images: Images) -> list[bytes]:
    return [image.tobytes() for image in images.pixels]


@given(order=st.permutations(range(40)), gone=st.sets(st.integers(0, 39), max_size=20), share=st.floats(0, 0.9))
def test_no_image_changes_sides_when_others_are_removed_or_reordered(
    order: list[int], gone: set[int], share: float
) -> None:
    _, test = hold_out(Images(IMAGES), share)
    test_content = set(content(test))
    some = Images(IMAGES).take(np.array([i for i in order if i not in gone]))
    try:
        train, test = hold_out(some, share)
    except VitrailError:
        assert set(content(some)) <= test_content
        return
    assert content(train) == [image for image in content(some) if image not in test_content]
    assert content(test) == [image for image in content(some) if image in test_content]


def test_labels_and_groups_do_not_change_sides() -> None:
    bare = Images(IMAGES)
    described = replace(bare, labels=np.arange(200) % 7, groups=np.arange(200) // 50)
    train, test = hold_out(described, 0.3)
    assert (content(train), content(test)) == tuple(map(content, hold_out(bare, 0.3)))
    assert test.labels is not None
    index = [content(bare).index(image) for image in content(test)]
    assert test.labels.tolist() == [i % 7 for i in index]


def test_duplicates_are_on_the_same_side() -> None:
    train, test = hold_out(Images(np.concatenate([IMAGES, IMAGES[::-1]])), 0.4)
    assert not set(content(train)) & set(content(test))
    assert len(train) + len(test) == 400


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.9])
def test_the_held_out_fraction_deviates_as_a_binomial(share: float) -> None:
    n = 20_000
    _, test = hold_out(Images(RNG.integers(0, 256, (n, 1, 4, 4), np.uint8)), share)
    assert abs(len(test) - n * share) < 5 * (n * share * (1 - share)) ** 0.5


def test_a_larger_fraction_holds_out_a_superset() -> None:
    tests = [set(content(hold_out(Images(IMAGES), share)[1])) for share in (0.0, 0.1, 0.3, 0.8)]
    assert all(a < b for a, b in pairwise(tests))
    assert not tests[0]


def test_which_images_are_held_out_never_changes() -> None:
    pixels = np.arange(40, dtype=np.uint8).reshape(40, 1, 1, 1)
    _, test = hold_out(Images(pixels), 0.2)
    assert test.pixels.ravel().tolist() == [3, 5, 8, 13, 15, 21, 22, 34, 35, 38]


def test_sixty_thousand_images_are_split_within_two_seconds() -> None:
    images = Images(np.zeros((60_000, 1, 32, 32), np.uint8))
    began = time.perf_counter()
    hold_out(images, 0.0)
    assert time.perf_counter() - began < 2
