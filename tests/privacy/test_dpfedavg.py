"""Clipped updates and the noise on their sum."""

import math

import numpy as np
import pytest
from scipy.stats import kstest

from vitrail.privacy.clipping import clipped, clipped_rows, noised
from vitrail.privacy.dpfedavg import clip_update, mean_update, mechanism
from vitrail.privacy.noise import seeded
from vitrail.utils.rng import Rng


def norm(a):
    return float(np.linalg.norm(np.asarray(a, np.float64)))


def vectors():
    draw = np.random.default_rng(1)
    for size in (1, 7, 1000, 100_000):
        yield from (draw.normal(size=size) * scale for scale in (1e-30, 1e-6, 1e-3, 1.0, 1e4, 1e30))
        yield np.ones(size)
        yield np.r_[np.zeros(size - 1), 1e38]
        yield draw.standard_cauchy(size)


@pytest.mark.parametrize("codec", ["float32", "float16"])
@pytest.mark.parametrize("clip", [1.0, 0.1, 30.0])
def test_clipped_vectors_are_within_the_norm_after_rounding(codec, clip):
    most = 0.0
    for v in vectors():
        found = clipped(v, clip, codec)
        assert found.dtype == codec
        assert norm(found) <= clip
        most = max(most, norm(found))
    assert most > 0.99 * clip


def test_a_short_vector_is_not_changed():
    v = np.array([0.25, -0.5, 0.125])
    assert np.array_equal(clipped(v, 1.0), v)
    assert np.array_equal(clipped_rows(v[None], 1.0), v[None])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_vectors_that_are_not_finite_become_zeros(bad):
    assert not clipped(np.array([1.0, bad]), 1.0).any()
    assert clipped_rows(np.array([[1.0, bad], [0.6, 0.8], [0.0, 0.0]]), 1.0) == pytest.approx(
        np.array([[0, 0], [0.6, 0.8], [0, 0]])
    )


def test_each_row_is_within_the_norm():
    rows = np.stack([v for v in vectors() if v.size == 1000])
    found = np.linalg.norm(clipped_rows(rows, 0.7), axis=1)
    assert (found <= 0.7).all()
    assert found.max() > 0.699
    directions = [np.dot(a, b) / norm(a) / norm(b) for a, b in zip(rows, clipped_rows(rows, 0.7), strict=True)]
    assert directions == pytest.approx([1.0] * len(rows))


@pytest.mark.parametrize("sigma", [1e-3, 1.0, 500.0])
def test_noise_has_its_sigma_and_is_rounded_to_a_grid(sigma):
    v = np.linspace(-5, 5, 50_000)
    found = noised(v, sigma, seeded(Rng((1,))))
    assert kstest((found - v) / sigma, "norm").pvalue > 1e-4
    assert (found - v).std() == pytest.approx(sigma, rel=0.015)
    grid = 2.0 ** (math.floor(math.log2(sigma)) - 20)
    assert np.array_equal(found / grid, np.rint(found / grid))


def test_parts_are_clipped_together():
    found = clip_update({"a": np.full(3, 2.0), "b": np.full(1, 2.0)}, 1.0, "float32")
    assert found["a"] == pytest.approx(np.full(3, 0.5), rel=1e-5)
    assert found["b"] == pytest.approx(np.full(1, 0.5), rel=1e-5)


def test_the_mean_update_is_that_of_the_noised_sum():
    sums = {"a": np.arange(20_000.0), "b": np.full(20_000, 4.0)}
    plain = mean_update(sums, 4, ["a", "b"], None)
    assert np.array_equal(plain["a"], np.arange(20_000.0) / 4)
    noisy = mean_update(sums, 4, ["a", "b"], (8.0, seeded(Rng((1,)))))
    noise = [noisy[name] - plain[name] for name in ("a", "b")]
    assert [n.std() for n in noise] == pytest.approx([2.0, 2.0], rel=0.03)
    assert abs(np.corrcoef(*noise)[0, 1]) < 0.04  # the noise of the parts is independent


def test_replacing_a_client_changes_the_sum_by_at_most_the_sensitivity():
    draw, found = np.random.default_rng(1), mechanism(0.3, "D", secure=False)
    others = sum(clipped(draw.normal(size=50), 0.3).astype(float) for _ in range(3))
    most = 0.0
    for v in (draw.normal(size=50) * 10.0**e for e in range(-3, 20)):
        for w in (-v, v, 0 * v, draw.standard_cauchy(50)):
            change = norm((others + clipped(v, 0.3)) - (others + clipped(w, 0.3)))
            assert change <= found.sensitivity
            most = max(most, change)
    assert most > 0.999 * found.sensitivity
