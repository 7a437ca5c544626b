"""Settings of loading that are invalid."""

from __future__ import annotations

import numpy as np
import pytest

from tests.data.files import GREY
from vitrail.data import SOURCES, Images, from_arrays, load
from vitrail.utils.errors import VitrailError


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_an_invalid_test_fraction_is_refused(share: float) -> None:
    with pytest.raises(VitrailError, match="test_fraction="):
        load("digits", test_fraction=share)


def test_a_fraction_that_leaves_no_training_images_is_refused() -> None:
    with pytest.raises(VitrailError, match="leaves none of 1"):
        from_arrays(np.zeros((1, 8, 8), np.uint8), test_fraction=0.9)


@pytest.mark.parametrize("size", [0, -3, 10**6])
def test_an_invalid_size_is_refused(size: int) -> None:
    with pytest.raises(VitrailError, match=f"size={size}"):
        load("digits", size=size)
    with pytest.raises(VitrailError, match=f"size={size}"):
        from_arrays(GREY, size=size)


def test_a_source_that_returns_no_dataset_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    images = Images(np.zeros((10, 1, 8, 8), np.uint8))
    monkeypatch.setattr(SOURCES, "_added", {"bare": (lambda request: images, "")})
    with pytest.raises(VitrailError, match=r"data=bare: the source returned Images, expected vitrail\.Dataset; return"):
        load("bare", size=8)
