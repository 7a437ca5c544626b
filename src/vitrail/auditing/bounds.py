"""Lower bounds on ε from the results of an attack: with a smaller ε, such results would be improbable.

Independent trials: Clopper-Pearson on true and false positives (Jagielski, Ullman, Oprea 2020), or on the Gaussian
trade-off (Nasr et al. 2023). One run with many canaries: Steinke, Nasr, Jagielski 2023, Theorem 5.2; with a Gaussian
trade-off Mahloujifar, Melis, Chaudhuri 2024, Algorithm 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from vitrail.privacy.accounting import epsilon
from vitrail.privacy.mechanism import Noise
from vitrail.utils.errors import VitrailError

MOST = 60.0  # largest ε that is tested
NORMAL = NormalDist()


def at_least(hits: int, n: int, alpha: float) -> float:
    """Return the lower Clopper-Pearson bound of a probability with `hits` of n, at an error rate of alpha.

    Examples:
        >>> round(at_least(10, 10, 0.05), 4) == round(0.05 ** 0.1, 4)
        True
    """
    from scipy.stats import beta

    return 0.0 if hits == 0 else float(beta.ppf(alpha, hits, n - hits + 1))


def at_most(hits: int, n: int, alpha: float) -> float:
    """Return the upper Clopper-Pearson bound."""
    return 1 - at_least(n - hits, n, alpha)


def from_rates(tp: int, members: int, fp: int, others: int, delta: float, confidence: float = 0.95) -> float:
    """Return a lower bound on ε from independent trials.

    (ε, δ)-DP means TPR ≤ e^ε FPR + δ and 1 - FPR ≤ e^ε (1 - TPR) + δ.

    Args:
        tp: Members that were classified as members.
        members: All members.
        fp: Others that were classified as members.
        others: All others.
        delta: δ.
        confidence: Confidence of the bound.

    Raises:
        VitrailError: A count exceeds its total.

    Examples:
        >>> from_rates(50, 100, 50, 100, 1e-5)
        0.0
    """
    tpr, fpr = _rates(tp, members, fp, others, confidence)
    found = [math.log(a / b) if a > 0 else 0.0 for a, b in ((tpr - delta, fpr), (1 - fpr - delta, 1 - tpr))]
    return max(0.0, *found)


def gaussian_from_rates(tp: int, members: int, fp: int, others: int, confidence: float = 0.95) -> float:
    """Return a lower bound on μ of a Gaussian mechanism: all tests have Φ⁻¹(TPR) - Φ⁻¹(FPR) ≤ μ."""
    tpr, fpr = _rates(tp, members, fp, others, confidence)
    return max(0.0, NORMAL.inv_cdf(tpr) - NORMAL.inv_cdf(fpr)) if tpr > 0 and fpr < 1 else 0.0


def _rates(tp: int, members: int, fp: int, others: int, confidence: float) -> tuple[float, float]:
    """Return a lower bound of TPR and an upper bound of FPR, which hold together with the confidence."""
    if not (0 <= tp <= members and 0 <= fp <= others and members and others):
        raise VitrailError(f"{tp} of {members} members and {fp} of {others} others: give counts within their totals")
    alpha = (1 - confidence) / 2
    return at_least(tp, members, alpha), at_most(fp, others, alpha)


def one_run_p(m: int, guesses: int, right: int, eps: float, delta: float) -> float:
    """Return the largest probability of at least `right` correct guesses under (ε, δ)-DP.

    Theorem 5.2: P[W ≥ v] + 2mδ max_i P[v > W ≥ v - i] / i with W binomial of probability e^ε/(1 + e^ε).

    Args:
        m: Canaries, each included by a fair coin.
        guesses: Canaries that were guessed.
        right: Correct guesses.
        eps: ε.
        delta: δ.

    Raises:
        VitrailError: There are more correct guesses than guesses, or more guesses than canaries.

    Examples:
        >>> one_run_p(4, 4, 4, 0.0, 0.0)
        0.0625
    """
    from scipy.stats import binom

    if not 0 <= right <= guesses <= m:
        raise VitrailError(f"{right} correct of {guesses} guesses about {m} canaries: none of them may exceed the next")
    q = 1 / (1 + math.exp(-eps))
    p = float(binom.sf(right - 1, guesses, q))
    if delta and right:
        below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, q))
        p += 2 * m * delta * float((below / np.arange(1, right + 1)).max())
    return min(p, 1.0)


def one_run(m: int, guesses: int, right: int, delta: float, confidence: float = 0.95) -> float:
    """Return a lower bound on ε from one run: the largest ε that this number of correct guesses refutes.

    Examples:
        >>> round(one_run(100, 100, 100, 0.0), 3) == round(math.log(0.05**0.01 / (1 - 0.05**0.01)), 3)
        True
    """
    return largest(lambda eps: one_run_p(m, guesses, right, eps, delta) <= 1 - confidence)


def one_run_gaussian(m: int, guesses: int, right: int, confidence: float = 0.95) -> float:
    """Return a lower bound on μ of a Gaussian trade-off from one run: the largest μ that the guesses refute."""
    return largest(lambda mu: mu > 0 and _refuted(m, guesses, right, mu, 1 - confidence), 20.0)


def _refuted(m: int, guesses: int, right: int, mu: float, tau: float) -> bool:
    """Return whether `right` or more correct guesses have a probability below τ under a Gaussian trade-off of μ.

    Let p_i be the probability of i correct guesses, r_i = Σ_{j≥i} j p_j / m, h_i = Σ_{j≥i} (guesses - j) p_j / m. Every
    trade-off f bounds r_{i+1} ≤ 1 - f(h_i). Starting from a tail of τ at `right` and descending gives the smallest
    possible r_0 + h_0. Its true value is guesses / m, so a larger one refutes μ.
    """
    r, h = tau * right / m, tau * (guesses - right) / m
    for i in range(right - 1, -1, -1):
        if r >= 1:
            return True
        above, h = h, max(h, NORMAL.cdf(NORMAL.inv_cdf(r) - mu) if r > 0 else 0.0)
        r += i / (guesses - i) * (h - above)
    return r + h >= guesses / m


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return ε at δ of a Gaussian mechanism whose sensitivity is μ times its σ."""
    return epsilon([(Noise(1 / mu), 1)], delta) if mu > 1e-4 else 0.0


def largest(refuted: Callable[[float], bool], most: float = MOST) -> float:
    """Return the largest refuted value, where all smaller ones are refuted too; 0 if none is."""
    low, high = 0.0, 1e-3
    while high < most and refuted(high):
        low, high = high, 2 * high
    if low == 0.0:
        return 0.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
