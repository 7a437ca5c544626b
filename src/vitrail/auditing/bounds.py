"""From an attack's results to a lower bound on ε: had ε been smaller, results as good would be improbable.

Independent trials: Clopper-Pearson on true and false positives (Jagielski, Ullman, Oprea 2020), or on the Gaussian
trade-off (Nasr et al. 2023). One run with many canaries: Steinke, Nasr, Jagielski 2023, Theorem 5.2; with a Gaussian
trade-off Mahloujifar, Melis, Chaudhuri 2024, Algorithm 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from vitrail.utils.errors import VitrailError

MOST = 60.0  # no ε above it is looked for
NORMAL = NormalDist()


def at_least(hits: int, n: int, alpha: float) -> float:
    """Clopper-Pearson: the chance behind `hits` of n is at least this, but for an error of alpha.

    >>> round(at_least(10, 10, 0.05), 4) == round(0.05 ** 0.1, 4)
    True
    """
    from scipy.stats import beta

    return 0.0 if hits == 0 else float(beta.ppf(alpha, hits, n - hits + 1))


def at_most(hits: int, n: int, alpha: float) -> float:
    """The same from above."""
    return 1 - at_least(n - hits, n, alpha)


def from_rates(tp: int, members: int, fp: int, others: int, delta: float, confidence: float = 0.95) -> float:
    """ε from independent trials: tp of the members and fp of the others were taken for members.

    (ε, δ)-DP means TPR ≤ e^ε FPR + δ and 1 - FPR ≤ e^ε (1 - TPR) + δ.

    >>> from_rates(50, 100, 50, 100, 1e-5)
    0.0
    """
    tpr, fpr = _rates(tp, members, fp, others, confidence)
    found = [math.log(a / b) if a > 0 else 0.0 for a, b in ((tpr - delta, fpr), (1 - fpr - delta, 1 - tpr))]
    return max(0.0, *found)


def gaussian_from_rates(tp: int, members: int, fp: int, others: int, confidence: float = 0.95) -> float:
    """μ of a Gaussian mechanism from independent trials: all tests of it keep Φ⁻¹(TPR) - Φ⁻¹(FPR) ≤ μ."""
    tpr, fpr = _rates(tp, members, fp, others, confidence)
    return max(0.0, NORMAL.inv_cdf(tpr) - NORMAL.inv_cdf(fpr)) if tpr > 0 and fpr < 1 else 0.0


def _rates(tp: int, members: int, fp: int, others: int, confidence: float) -> tuple[float, float]:
    """TPR at least, FPR at most; both hold together with the confidence."""
    if not (0 <= tp <= members and 0 <= fp <= others and members and others):
        raise VitrailError(f"{tp} of {members} members and {fp} of {others} others: give counts within their totals")
    alpha = (1 - confidence) / 2
    return at_least(tp, members, alpha), at_most(fp, others, alpha)


def one_run_p(m: int, guesses: int, right: int, eps: float, delta: float) -> float:
    """How probable so many right guesses are at most, under (ε, δ)-DP with m canaries, each in by a fair coin.

    Theorem 5.2: P[W ≥ v] + 2mδ max_i P[v > W ≥ v - i] / i with W binomial, e^ε/(1 + e^ε) its chance.

    >>> one_run_p(4, 4, 4, 0.0, 0.0)
    0.0625
    """
    from scipy.stats import binom

    if not 0 <= right <= guesses <= m:
        raise VitrailError(f"{right} right of {guesses} guesses about {m} canaries: each must be within the next")
    q = 1 / (1 + math.exp(-eps))
    p = float(binom.sf(right - 1, guesses, q))
    if delta and right:
        below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, q))
        p += 2 * m * delta * float((below / np.arange(1, right + 1)).max())
    return min(p, 1.0)


def one_run(m: int, guesses: int, right: int, delta: float, confidence: float = 0.95) -> float:
    """ε from one run: the largest that so many right guesses refute.

    >>> round(one_run(100, 100, 100, 0.0), 3) == round(math.log(0.05**0.01 / (1 - 0.05**0.01)), 3)
    True
    """
    return largest(lambda eps: one_run_p(m, guesses, right, eps, delta) <= 1 - confidence)


def one_run_gaussian(m: int, guesses: int, right: int, confidence: float = 0.95) -> float:
    """μ from one run, if the trade-off is Gaussian: the largest that so many right guesses refute."""
    return largest(lambda mu: mu > 0 and _refuted(m, guesses, right, mu, 1 - confidence), 20.0)


def _refuted(m: int, guesses: int, right: int, mu: float, tau: float) -> bool:
    """Whether `right` or more right guesses have a chance below τ under a Gaussian trade-off of μ.

    Let p_i be the chance of i right guesses, r_i = Σ_{j≥i} j p_j / m, h_i = Σ_{j≥i} (guesses - j) p_j / m. Every
    trade-off f bounds r_{i+1} ≤ 1 - f(h_i). Starting from a tail of τ at `right`, going down, the least r_0 + h_0 that
    this allows follows; it is guesses / m in truth, so a larger one refutes μ.
    """
    r, h = tau * right / m, tau * (guesses - right) / m
    for i in range(right - 1, -1, -1):
        if r >= 1:
            return True
        above, h = h, max(h, NORMAL.cdf(NORMAL.inv_cdf(r) - mu) if r > 0 else 0.0)
        r += i / (guesses - i) * (h - above)
    return r + h >= guesses / m


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε at δ of a Gaussian mechanism whose sensitivity is μ times its σ."""
    from vitrail.privacy.accounting import epsilon
    from vitrail.privacy.mechanism import Noise

    return epsilon([(Noise(1 / mu), 1)], delta) if mu > 1e-4 else 0.0


def largest(refuted: Callable[[float], bool], most: float = MOST) -> float:
    """The largest value that is refuted, where all below it are; 0 where none is."""
    low, high = 0.0, 1e-3
    while high < most and refuted(high):
        low, high = high, 2 * high
    if low == 0.0:
        return 0.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
