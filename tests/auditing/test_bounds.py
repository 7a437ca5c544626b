"""Lower bounds on ε: valid at their confidence, equal to closed forms in small cases, and not always zero."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import binom

from vitrail.auditing import bounds
from vitrail.privacy.accounting import epsilon
from vitrail.privacy.mechanism import Noise
from vitrail.utils.errors import VitrailError

REPEATS = 40


def test_clopper_pearson_is_exact_at_its_ends():
    assert bounds.at_least(20, 20, 0.05) == pytest.approx(0.05 ** (1 / 20))
    assert bounds.at_most(0, 20, 0.05) == pytest.approx(1 - 0.05 ** (1 / 20))
    low = bounds.at_least(7, 20, 0.025)  # at this rate 7 or more hits have a probability of 2.5%
    assert binom.sf(6, 20, low) == pytest.approx(0.025)


def test_rates_give_the_logarithm_of_their_ratio():
    n = 50
    tpr, fpr = 0.025 ** (1 / n), 1 - 0.025 ** (1 / n)  # all right
    assert bounds.from_rates(n, n, 0, n, 0.01) == pytest.approx(math.log((tpr - 0.01) / fpr))
    assert bounds.from_rates(25, n, 25, n, 0.0) == 0
    with pytest.raises(VitrailError, match="51 of 50 members"):
        bounds.from_rates(51, 50, 0, 50, 0.0)


def test_one_run_without_delta_is_a_binomial_test():
    eps, q = 1.0, math.e / (1 + math.e)
    assert bounds.one_run_p(10, 10, 8, eps, 0.0) == pytest.approx(sum(binom.pmf(k, 10, q) for k in (8, 9, 10)))
    found = bounds.one_run(30, 20, 20, 0.0)
    assert found == pytest.approx(math.log(0.05 ** (1 / 20) / (1 - 0.05 ** (1 / 20))), abs=1e-4)


def test_one_run_with_delta_adds_what_the_theorem_adds():
    m, r, v, eps, delta = 12, 6, 5, 0.7, 0.01
    q = 1 / (1 + math.exp(-eps))
    tail = sum(binom.pmf(k, r, q) for k in range(v, r + 1))
    extra = max(2 / i * sum(binom.pmf(k, r, q) for k in range(v - i, v)) for i in range(1, v + 1))
    assert bounds.one_run_p(m, r, v, eps, delta) == pytest.approx(tail + m * delta * extra)
    assert bounds.one_run(m, 6, 6, 0.0) >= bounds.one_run(m, 6, 6, 1e-3)


def test_one_guess_under_a_gaussian_trade_off_is_its_best_test():
    # One canary and one guess, correct with a probability of at most Φ(μ/2); a tail of 0.9 refutes μ below 2Φ⁻¹(0.9).
    found = bounds.one_run_gaussian(1, 1, 1, confidence=0.1)
    assert found == pytest.approx(2 * NormalDist().inv_cdf(0.9), abs=1e-3)


@pytest.fixture(scope="module", params=[0.5, 2.0, 4.0], ids=lambda mu: f"mu={mu:g}")
def audited(request):
    """Bounds on a Gaussian mechanism of known μ, repeated: canaries ±μ/2 in noise of 1."""
    mu, rng, m = request.param, np.random.default_rng(3), 300
    rows = []
    for _ in range(REPEATS):
        coins = rng.random(m) < 0.5
        seen = np.where(coins, mu / 2, -mu / 2) + rng.normal(size=m)
        guessed = seen > 0
        sure = np.argsort(-np.abs(seen))[:60]
        counts = (int((guessed & coins).sum()), int(coins.sum()), int((guessed & ~coins).sum()), int((~coins).sum()))
        right = int((guessed == coins)[sure].sum())
        rows.append(
            [
                bounds.from_rates(*counts, 1e-5),
                bounds.gaussian_epsilon(bounds.gaussian_from_rates(*counts), 1e-5),
                bounds.one_run(m, 60, right, 1e-5),
                bounds.gaussian_epsilon(bounds.one_run_gaussian(m, 60, right), 1e-5),
            ]
        )
    return mu, epsilon([(Noise(1 / mu), 1)], 1e-5), np.array(rows)


def test_bounds_are_below_the_true_epsilon_at_their_confidence(audited):
    _, true, found = audited
    # of 40 repeats at 95%, more than 6 exceed the true value with a probability of 1/300
    assert ((found > true).sum(0) <= 6).all()


def test_bounds_are_large_where_epsilon_is_large(audited):
    mu, true, found = audited
    if mu == 4.0:
        assert (np.median(found, 0) > [2.0, 0.6 * true, 2.0, 3.0]).all()
    if mu == 0.5:
        assert np.median(found[:, 1]) < true


@pytest.mark.parametrize(
    ("arguments", "published"), [((1000, 100, 75, 1e-4), 0.673), ((100_000, 1510, 1439, 1e-5), 2.675)]
)
def test_one_run_gives_the_published_values(arguments, published):
    # Steinke, Nasr, Jagielski 2023 (arXiv:2305.08846v1), Appendix D and section 7
    assert bounds.one_run(*arguments) == pytest.approx(published, abs=1e-3)
