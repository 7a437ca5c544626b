"""The linear probe; the limit on generated images; precision, recall, density and coverage by prdc and a plain loop."""

import numpy as np
import pytest
import torch
from prdc import compute_prdc

from vitrail.metrics.distances import Distances, Neighbourhoods, probe
from vitrail.metrics.extractors import Extractor, FeatureSet


def plain_softmax_regression(x, y, test, classes, c=0.1):
    """The same objective, ½|w|² + C Σ cross-entropy on standardised features, minimised by another optimiser."""
    mean, std = x.mean(0), x.std(0, correction=0)
    x, test = ((v - mean) / std for v in (x.double(), test.double()))
    w = torch.zeros(x.shape[1], classes, dtype=torch.float64, requires_grad=True)
    b = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([w, b], max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = 0.5 * w.square().sum() + c * torch.nn.functional.cross_entropy(x @ w + b, y, reduction="sum")
        value.backward()
        return value

    optimizer.step(loss)
    return (test @ w + b).detach().argmax(1)


def clouds(n, seed):
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    centres = torch.tensor([[0.0, 0.0, 1.0], [2.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    return centres[y] * 1.2 + torch.randn(n, 3, generator=draw), y


def test_predictions_are_those_of_a_plain_softmax_regression():
    (x, y), (test, truth) = clouds(300, 0), clouds(400, 1)
    right = probe(x, y, test, truth)
    plain = (plain_softmax_regression(x, y, test, 3) == truth).double().numpy()
    assert np.mean(right == plain) > 0.99  # points on the border may differ
    assert 0.6 < right.mean() < 0.95


def test_a_probe_of_one_class_predicts_that_class():
    x, y = clouds(30, 0)
    assert probe(x, torch.zeros(30, dtype=torch.int64), x, y).mean() == (y == 0).double().mean()


def test_images_beyond_the_limit_are_ignored():
    (x, y), (real, _) = clouds(300, 0), clouds(100, 1)
    known = FeatureSet.empty(3)
    known.update(real, None)
    limited, first = (Distances(Extractor("cloud", 3, lambda x: x, ""), known, "fd") for _ in range(2))
    limited.max_images = 70
    for at in range(0, 300, 50):
        limited.update(x[at : at + 50], y[at : at + 50])
    first.update(x[:50], y[:50])
    first.update(x[50:70], y[50:70])
    assert limited.compute() == first.compute()
    assert limited.compute()[0].n_fake == 70


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
