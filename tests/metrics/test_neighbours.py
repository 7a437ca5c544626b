"""Precision, recall, density and coverage equal those of prdc and of a plain loop."""

import numpy as np
import pytest
from prdc import compute_prdc

from vitrail.metrics.distances import Neighbourhoods

REAL = np.random.default_rng(0).normal(size=(60, 3))
FAKE = np.random.default_rng(1).normal(size=(50, 3)) * 0.7 + 0.4


def plain(real, fake, k=5):
    def distance(a, b):
        return float(np.sqrt(((a - b) ** 2).sum()))

    def radius(points, i):
        return sorted(distance(points[i], other) for j, other in enumerate(points) if j != i)[k - 1]

    r, f = ([radius(points, i) for i in range(len(points))] for points in (real, fake))
    inside = [sum(distance(a, b) < r[i] for i, a in enumerate(real)) for b in fake]
    return {
        "precision": np.mean([n > 0 for n in inside]),
        "density": np.mean(inside) / k,
        "recall": np.mean([any(distance(a, b) < f[j] for j, b in enumerate(fake)) for a in real]),
        "coverage": np.mean([any(distance(a, b) < r[i] for b in fake) for i, a in enumerate(real)]),
    }


def test_the_values_are_those_of_prdc_and_of_the_definitions():
    ours = Neighbourhoods(REAL, FAKE).shares()
    assert ours == pytest.approx(compute_prdc(REAL, FAKE, nearest_k=5))
    assert ours == pytest.approx(plain(REAL, FAKE))


def test_values_of_subsets_are_those_of_the_remaining_points():
    real, fake = np.arange(60) % 7 != 2, np.arange(50) % 4 != 1
    found = Neighbourhoods(REAL, FAKE).shares(real, fake)
    assert found == pytest.approx(compute_prdc(REAL[real], FAKE[fake], nearest_k=5))


def test_distant_images_have_no_precision_and_no_coverage():
    found = Neighbourhoods(REAL, FAKE + 100).shares()
    assert found["precision"] == found["coverage"] == found["recall"] == 0
