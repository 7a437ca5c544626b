"""Files and arrays for the tests of data."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.dataset import Dataset, Images
from vitrail.data.holdout import hold_out

RNG = np.random.default_rng(0)

REAL = os.environ.get("VITRAIL_ASSETS")

GREY = RNG.integers(0, 256, (6, 32, 32), np.uint8)

COLOUR = RNG.integers(0, 256, (6, 32, 32, 3), np.uint8)

Y = np.array([0, 1, 2, 0, 1, 2])


def save(path: Path, mode: str = "RGB", side: tuple[int, int] = (40, 40), value: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if mode == "I;16":
        Image.fromarray(np.full(side, value, np.uint16)).save(path)
        return path
    pixels = RNG.integers(0, 256, (*side, 3), np.uint8) if value is None else np.full((*side, 3), value, np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


def assert_split_by_content(data: Dataset) -> None:
    """Assert that half of the images were held out by a hash of their content."""
    train, test = hold_out(Images(np.concatenate([data.test.pixels, data.train.pixels])), 0.5)
    assert np.array_equal(train.pixels, data.train.pixels)
    assert np.array_equal(test.pixels, data.test.pixels)


def need(*files: str) -> None:
    """Skip the test if the real files are not available."""
    if not REAL:
        pytest.skip("VITRAIL_ASSETS is not set")
    for file in files:
        if not Path(REAL, file).is_file():
            pytest.skip(f"VITRAIL_ASSETS has no {file}")


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def zipped(raw: bytes) -> bytes:
    """Compress without a time, which would change the names of the tests."""
    return gzip.compress(raw, mtime=0)
