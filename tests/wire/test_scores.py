"""Fixed-point scores, compared with plain floats."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vitrail.wire import scores

grid = hnp.arrays(np.int16, st.integers(1, 20), elements=st.integers(-scores.LIMIT, scores.LIMIT))


@given(grid)
def test_conversion_to_theta_and_back_is_within_one_unit(s):
    inside = np.clip(s, -4000, 4000).astype(np.int16)
    back = scores.from_theta(scores.theta(inside), 0.001)
    assert np.abs(back.astype(int) - inside).max() <= 1


@given(grid, st.integers(0, scores.ONE))
def test_madas_step_is_the_weighted_mean_within_half_a_unit(s, lam):
    other = np.roll(s, 1)
    exact = (1 - lam / scores.ONE) * s.astype(float) + lam / scores.ONE * other.astype(float)
    assert np.abs(scores.step(s, other, lam) - exact).max() <= 0.5


def test_madas_step_with_lambda_one_is_the_average_and_with_zero_no_change():
    s, other = np.array([-5, 7, 32767], np.int16), np.array([32767, -32767, 0], np.int16)
    assert scores.step(s, other, scores.ONE).tolist() == other.tolist()
    assert scores.step(s, other, 0).tolist() == s.tolist()


def test_the_distance_of_equal_scores_is_the_mean_of_two_theta_one_minus_theta():
    s = np.array([0, 1024, -2048], np.int16)
    theta = 1 / (1 + np.exp(-s / 1024))
    assert scores.distance(s, s) / scores.ONE == pytest.approx(np.mean(2 * theta * (1 - theta)), abs=1e-5)


def test_the_sampled_distance_is_the_fraction_of_different_mask_elements():
    s, other = np.full(200_000, 500, np.int16), np.full(200_000, -900, np.int16)
    sampled = scores.distance(s, other, np.random.default_rng(1))
    assert sampled / scores.ONE == pytest.approx(scores.distance(s, other) / scores.ONE, abs=4 * 0.5 / np.sqrt(2e5))


@pytest.mark.parametrize(("how", "expected"), [("normal", 2.0), ("uniform", 0.2887)])
def test_initial_scores_are_normal_or_have_uniform_theta(how, expected):
    s = scores.first(7, 100_000, how, 2.0)
    spread = np.std(s / 1024) if how == "normal" else np.std(scores.theta(s))
    assert spread == pytest.approx(expected, rel=0.02)
    assert np.array_equal(s, scores.first(7, 100_000, how, 2.0))


@pytest.mark.parametrize("clients", [1, 3, 10, 20])
def test_every_count_of_few_clients_has_a_separate_level(clients):
    s = scores.from_counts(np.tile(np.arange(clients + 1), 2000), clients, 0.02)
    assert len(set(scores.levels(s).tolist())) == clients + 1


def test_scores_are_finite_if_all_masks_agree():
    s = scores.from_counts(np.array([0, 3]), 3, 0.02)
    assert scores.theta(s) == pytest.approx([0.02, 0.98], abs=1e-4)
