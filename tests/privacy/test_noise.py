"""Noise: its distributions, against closed forms and other libraries."""

import numpy as np
import pytest
from scipy import stats

from vitrail.privacy.noise import discrete_gaussian, gaussian, operating_system, seeded
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng

N = 200_000


def source(*name):
    return seeded(Rng((11, *name)))


def law(sigma):
    """The closed form: integers and their probabilities, far into the tails."""
    x = np.arange(-int(12 * sigma) - 12, int(12 * sigma) + 13)
    p = np.exp(-(x**2) / (2 * sigma**2))
    return x, p / p.sum()


def fits(drawn, x, p, least=20):
    """The p-value of a chi-square test; cells at both ends are merged until each expects enough."""
    lower = max(np.searchsorted(np.cumsum(p) * len(drawn), least), 0)
    upper = len(x) - max(np.searchsorted(np.cumsum(p[::-1]) * len(drawn), least), 0)
    edges = np.concatenate([[-np.inf], x[lower + 1 : upper] - 0.5, [np.inf]])
    cells = np.digitize(x, edges) - 1
    expected = np.bincount(cells, p, minlength=len(edges) - 1) * len(drawn)
    seen = np.histogram(drawn, edges)[0]
    return stats.chisquare(seen, expected).pvalue


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.7, 20.0])
def test_the_discrete_gaussian_has_the_probabilities_of_its_closed_form(sigma):
    drawn = discrete_gaussian(source(sigma), N, sigma)
    assert fits(drawn, *law(sigma)) > 1e-3


def test_the_chi_square_test_detects_a_wrong_distribution():
    x, p = law(1.0)
    assert (
        fits(np.rint(gaussian(source("rounded"), N, 1.0)), x, p) < 1e-6
    )  # a rounded Gaussian has another distribution
    assert fits(discrete_gaussian(source("other"), N, 1.02), x, p) < 1e-3


@pytest.mark.parametrize("sigma", [0.5, 2.0, 1000.0, 1e6])
def test_the_discrete_gaussian_has_its_variance_and_is_symmetric(sigma):
    drawn = discrete_gaussian(source("variance", sigma), N, sigma)
    x, p = law(sigma) if sigma < 1e5 else (None, None)
    variance = sigma**2 if x is None else float(p @ x.astype(float) ** 2)
    assert abs(drawn.var() / variance - 1) < 5 * np.sqrt(3 / N)
    assert abs(drawn.mean()) < 5 * sigma / np.sqrt(N)
    up, down = np.count_nonzero(drawn > 0), np.count_nonzero(drawn < 0)
    assert stats.binomtest(up, up + down).pvalue > 1e-4


def test_a_wide_discrete_gaussian_passes_a_test_for_a_gaussian():
    drawn = discrete_gaussian(source("wide"), N, 1e6)
    assert stats.kstest(drawn / 1e6, "norm").pvalue > 1e-3
    assert len(np.unique(drawn % 16)) == 16  # not on a coarser grid


def test_the_gaussian_has_its_distribution_and_variance():
    drawn = gaussian(source("real"), N, 2.5)
    assert stats.kstest(drawn / 2.5, "norm").pvalue > 1e-3
    assert abs(drawn.var() / 6.25 - 1) < 5 * np.sqrt(2 / N)


def test_the_extremes_of_the_gaussian_are_finite_symmetric_and_large():
    least = lambda n: (b"\x00" * 8 + b"\x01" + b"\x00" * 7) * (n // 16)  # noqa: E731
    low, high = gaussian(least, 2, 1.0)
    assert low == -high
    assert 9.0 < high < 9.3
    assert np.isclose(2 * stats.norm.sf(high), 2.0**-64, rtol=1e-6)  # the smallest tail of 63 bits, halved
    middle = gaussian(lambda n: b"\xff" * n, 1, 1.0)
    assert abs(middle[0]) < 1e-15


@pytest.mark.parametrize("draw", [gaussian, discrete_gaussian])
def test_a_seed_repeats_its_bits_and_the_operating_system_does_not(draw):
    assert draw(source("a"), 1000, 3.0).tobytes() == draw(source("a"), 1000, 3.0).tobytes()
    assert draw(source("a"), 1000, 3.0).tobytes() != draw(source("b"), 1000, 3.0).tobytes()
    assert draw(operating_system, 1000, 3.0).tobytes() != draw(operating_system, 1000, 3.0).tobytes()


@pytest.mark.parametrize("draw", [gaussian, discrete_gaussian])
@pytest.mark.parametrize("sigma", [0.0, -1.0, float("nan"), float("inf"), 2.0**41])
def test_an_invalid_sigma_is_refused(draw, sigma):
    with pytest.raises(VitrailError, match="expected a number from"):
        draw(source("x"), 3, sigma)


@pytest.mark.parametrize("draw", [gaussian, discrete_gaussian])
def test_zero_draws_give_an_empty_array(draw):
    assert len(draw(source("none"), 0, 1.0)) == 0
