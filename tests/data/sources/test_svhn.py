"""Street View House Numbers."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from tests.data.files import put
from vitrail.data import load
from vitrail.utils.errors import Malformed


def mat(**variables: np.ndarray) -> bytes:
    out = io.BytesIO()
    savemat(out, variables)
    return out.getvalue()


def test_the_digit_zero_of_svhn_has_label_zero(assets: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 4), np.uint8)
    for part in ("train", "test"):
        put(assets / "svhn" / f"{part}_32x32.mat", mat(X=images, y=np.array([[10], [1], [9], [10]], np.uint8)))
    data = load("svhn")
    assert data.train.labels is not None
    assert data.train.labels.tolist() == [0, 1, 9, 0]
    assert np.array_equal(data.train.pixels[2].transpose(1, 2, 0), images[..., 2])


PIXELS = np.zeros((32, 32, 3, 2), np.uint8)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"another file", "not a complete MATLAB file"),
        (mat(X=PIXELS, y=np.ones(2, np.uint8))[:200], "not a complete MATLAB file|has no variable"),
        (mat(X=PIXELS), "no variable y"),
        (mat(X=PIXELS[:30], y=np.ones(2, np.uint8)), "expected uint8 of"),
        (mat(X=PIXELS / 2, y=np.ones(2, np.uint8)), "float64"),
        (mat(X=PIXELS, y=np.ones(3, np.uint8)), "3 labels for 2 images"),
        (mat(X=PIXELS, y=np.array([0, 11])), "outside 1 to 10"),
    ],
)
def test_a_bad_svhn_file_is_refused_by_name(assets: Path, content: bytes, reason: str) -> None:
    put(assets / "svhn" / "train_32x32.mat", content)
    put(assets / "svhn" / "test_32x32.mat", content)
    with pytest.raises(Malformed, match=reason) as error:
        load("svhn")
    assert "train_32x32.mat" in str(error.value)
