"""Intervals: closed forms, and coverage of fresh samples."""

import numpy as np
import pytest
import torch

from vitrail.metrics.distances import Distances
from vitrail.metrics.extractors import Extractor, FeatureSet
from vitrail.metrics.measure import bootstrap, jackknife, share

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("hits", [0, 3, 50, 100])
def test_the_interval_of_a_share_solves_wilsons_equation(hits):
    p, low, high = share(np.repeat([1.0, 0.0], [hits, 100 - hits]))
    assert p == hits / 100
    for edge in (low, high):  # the shares at which p would be just 1.96 standard deviations away
        assert abs(p - edge) == pytest.approx(1.96 * np.sqrt(edge * (1 - edge) / 100), abs=1e-7)
    assert low <= p <= high
    assert low < high


def test_the_interval_of_a_difference_depends_on_both_sets():
    draw = np.random.default_rng(1)
    a, b = draw.normal(1, 2, 500), draw.normal(0, 1, 100)
    value, low, high = bootstrap([a, b], draw, lambda x, y: x - y)
    assert value == pytest.approx(a.mean() - b.mean())
    se = np.sqrt(a.var() / 500 + b.var() / 100)
    assert (high - low) == pytest.approx(2 * 1.96 * se, rel=0.2)


def test_most_intervals_cover_the_true_mean():
    draw = np.random.default_rng(2)
    covered = 0
    for _ in range(100):
        _, low, high = bootstrap([draw.exponential(1.0, 80)], draw)
        covered += low <= 1.0 <= high
    assert covered >= 85


def test_a_jackknife_of_means_is_the_standard_error_within_the_limits():
    draw = np.random.default_rng(3)
    a, b = draw.normal(0, 3, 400), draw.normal(0, 1, 100)
    without = [
        [np.delete(a, i).mean() - b.mean() for i in range(len(a))],
        [a.mean() - np.delete(b, i).mean() for i in range(len(b))],
    ]
    value, low, high = jackknife(a.mean() - b.mean(), without, (1, 1), (-9, 9))
    se = np.sqrt(a.var(ddof=1) / 400 + b.var(ddof=1) / 100)
    assert (high - low) / 2 == pytest.approx(1.96 * se, rel=1e-6)
    assert jackknife(0.99, [[0.9, 1.0]], [1], (0, 1))[2] == 1
    half = jackknife(value, without, (0.25, 0.25), (-9, 9))
    assert half[2] - half[1] == pytest.approx((high - low) / 2)


def measured(seed, n, m):
    """Distances of two Gaussian clouds in four dimensions."""
    draw = torch.Generator().manual_seed(seed)
    real, fake = torch.randn(n, 4, generator=draw), 0.8 * torch.randn(m, 4, generator=draw) + 0.5
    known = FeatureSet.empty(4)
    known.update(real, None)
    metric = Distances(Extractor("cloud", 4, lambda x: x, ""), known, "fd")
    metric.update(fake, None)
    return {x.name: x for x in metric.compute()}


@pytest.mark.parametrize(("n", "m"), [(300, 300), (200, 1000)])
def test_intervals_of_distances_match_the_spread_of_fresh_samples(n, m):
    runs = [measured(seed, n, m) for seed in range(30)]
    for name in ("fd", "kid", "precision", "recall", "density", "coverage"):
        spread = np.std([r[name].value for r in runs], ddof=1)
        claimed = np.mean([(r[name].high - r[name].low) / (2 * 1.96) for r in runs])
        assert 0.7 < claimed / spread < 2.2, name  # never far too narrow
