"""Privacy accounting: ε at δ of composed releases by dp-accounting, checked by Opacus.

Any number of equal Gaussian releases have an exact profile (Balle and Wang 2018, Theorem 8): together they are one
Gaussian release whose multiplier is √n times smaller. Sampled releases and mixtures are composed by privacy loss
distributions, vectors of integers by Rényi divergences.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from vitrail.privacy.mechanism import Noise
from vitrail.utils.errors import VitrailError

Spent = Sequence[tuple[Noise, int]]  # kinds of noise, each with the number of answers that have it
HUGE = 2000.0  # above it ε is bounded in closed form: exact values are of no use, and take minutes or gigabytes
SMALLEST = 0.007  # a multiplier at which ε is about 10,000: below it ε counts as infinite


def _releases(spent: Spent) -> dict[Noise, int]:
    """Return the number of single releases of each kind of noise."""
    found: dict[Noise, int] = {}
    for noise, answers in spent:
        if answers:
            key = Noise(noise.multiplier, 1, noise.rate, noise.discrete)
            found[key] = found.get(key, 0) + answers * noise.steps
    return found


@cache
def _epsilon(kinds: tuple[tuple[Noise, int], ...], delta: float) -> float:
    import dp_accounting as dp

    if len(kinds) == 1 and kinds[0][0].rate == 1 and not kinds[0][0].discrete:
        ((noise, n),) = kinds
        return float(dp.get_epsilon_gaussian(noise.multiplier / math.sqrt(n), delta))
    accountant: Any
    neighbours = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    if any(noise.discrete for noise, _ in kinds):
        accountant = dp.rdp.RdpAccountant(neighboring_relation=neighbours)
    elif (divergence := sum(n * _order_two(noise) for noise, n in kinds)) > HUGE:
        return divergence + math.log(1 / delta)  # ε <= D_α + log(1/δ) / (α - 1), Mironov 2017
    else:
        coarse = 1e-3  # grid of the losses, rounded up: ten times faster than the default, ε at most 0.01% larger
        accountant = dp.pld.PLDAccountant(neighbours, value_discretization_interval=coarse)
    for noise, n in kinds:
        accountant.compose(_event(noise), n)
    return float(accountant.get_epsilon(delta))


def _order_two(noise: Noise) -> float:
    """Return the Rényi divergence of order 2 of a Poisson-sampled Gaussian: log(1 + q² (exp(1/σ²) - 1)).

    >>> _order_two(Noise(0.5)), round(_order_two(Noise(0.01, rate=0.5)), 3)
    (4.0, 9998.614)
    """
    x = 1 / noise.multiplier**2
    return x + 2 * math.log(noise.rate) if x > 500 else math.log1p(noise.rate**2 * math.expm1(x))


def _event(noise: Noise) -> Any:
    import dp_accounting as dp

    if noise.discrete:
        return dp.ZCDpEvent(1 / (2 * noise.multiplier**2))
    event = dp.GaussianDpEvent(noise.multiplier)
    return event if noise.rate == 1 else dp.PoissonSampledDpEvent(noise.rate, event)


def accountant_of(spent: Spent) -> str:
    """Return the name of the accountant that `epsilon` uses for these releases."""
    kinds = list(_releases(spent))
    if any(noise.discrete for noise in kinds):
        return "dp-accounting, Rényi"
    if len(kinds) == 1 and kinds[0].rate == 1:
        return "dp-accounting, exact Gaussian"
    return "dp-accounting, privacy loss distribution"


def epsilon(spent: Spent, delta: float) -> float:
    """Return ε at δ of all answers together.

    Args:
        spent: Kinds of noise, each with the number of answers that have it.
        delta: δ.

    Returns:
        ε; infinite if any answer has no noise, 0 if there are no answers.

    Examples:
        >>> round(epsilon([(Noise(0.508163), 1)], 1e-5), 3)
        9.8
        >>> epsilon([], 1e-5)
        0.0
    """
    kinds = _releases(spent)
    if not kinds:
        return 0.0
    if any(noise.multiplier <= SMALLEST for noise in kinds):
        return math.inf
    return _epsilon(tuple(sorted(kinds.items(), key=repr)), delta)


def second_opinion(spent: Spent, delta: float) -> tuple[str, float]:
    """Return ε at δ by Opacus, as an independent check of `epsilon`.

    Returns:
        The name of the accountant, and ε.
    """
    import numpy as np
    from opacus.accountants import PRVAccountant, RDPAccountant

    kinds = _releases(spent)
    if not kinds or any(noise.multiplier <= SMALLEST for noise in kinds):
        return "Opacus", epsilon(spent, delta)
    by_orders, by_losses = RDPAccountant(), PRVAccountant()
    by_orders.history = by_losses.history = [(noise.multiplier, noise.rate, n) for noise, n in kinds.items()]
    orders = [1 + x / 50 for x in range(1, 500)] + [float(x) for x in range(11, 300)]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about orders at the end of the range: this ε sets a tolerance
        above = float(by_orders.get_epsilon(delta, alphas=orders))
        if any(noise.discrete for noise in kinds):
            return "Opacus, Rényi", above
        return "Opacus, PRV", float(by_losses.get_epsilon(delta, eps_error=max(above * 1e-3, 1e-4)))


def multiplier_for(cost: Callable[[float], Spent], target: float, delta: float) -> float:
    """Return the smallest noise multiplier whose ε at δ is at most a target.

    Args:
        cost: Returns what is released at a given multiplier.
        target: Target ε.
        delta: δ.

    Raises:
        VitrailError: The target is not positive, or no multiplier up to 1e7 reaches it.

    Examples:
        >>> round(multiplier_for(lambda m: [(Noise(m), 1)], 1.0, 1e-5), 4)
        3.7306
    """
    if not target > 0:
        raise VitrailError(f"epsilon={target:g}: must be above 0; no noise gives ε = 0")
    low, high = 2 * SMALLEST, 1.0
    while epsilon(cost(high), delta) > target:
        low, high = high, 2 * high
        if high > 1e7:
            raise VitrailError(
                f"epsilon={target:g} at delta={delta:g} needs noise of more than {high:.0e} times the sensitivity; at "
                f"that noise epsilon is still {epsilon(cost(high), delta):.3g}: choose a larger epsilon than that"
            )
    if epsilon(cost(low), delta) <= target:
        return low
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if epsilon(cost(middle), delta) <= target else (middle, high)
    return high


def answers_within(noise: Noise, target: float, delta: float, most: int = 10**6) -> int:
    """Return how many answers with a given noise stay within a target ε at δ; at most about `most`.

    Examples:
        >>> answers_within(Noise(10.0), 1.0, 1e-5)
        7
    """
    if epsilon([(noise, 1)], delta) > target:
        return 0
    low, high = 1, 2
    while high < most and epsilon([(noise, high)], delta) <= target:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if epsilon([(noise, middle)], delta) <= target else (low, middle)
    return low


def delta_at(noise: Noise, answers: int, eps: float) -> float:
    """Return δ at ε of equal Gaussian releases without sampling: the exact profile."""
    from scipy.special import log_ndtr

    mu = math.sqrt(answers * noise.steps) / noise.multiplier
    a, b = float(log_ndtr(mu / 2 - eps / mu)), float(log_ndtr(-mu / 2 - eps / mu))
    return math.exp(a) - math.exp(eps + b)


def bernoulli_renyi(alpha: float, c: float) -> float:
    """Return γ_α(c): the largest Rényi divergence of one Bernoulli draw whose probability is within [c, 1-c].

    Imola and Chaudhuri 2021; d draws cost at most d times as much, for all data.

    Examples:
        >>> round(bernoulli_renyi(2.0, 0.1), 3)
        2.093
    """
    return math.log(c**alpha * (1 - c) ** (1 - alpha) + (1 - c) ** alpha * c ** (1 - alpha)) / (alpha - 1)


def amplified(multiplier: float, d: int, c: float, answers: int, delta: float) -> tuple[float, float]:
    """Return ε at δ of masks that are drawn from noised probabilities, by Rényi divergences.

    At each order the divergence of an answer is the smaller of the noise's and d·γ_α(c). It is converted to ε
    afterwards, so the result is never above that of the noise alone.

    Args:
        multiplier: Noise multiplier of the probabilities.
        d: Bits per mask.
        c: Probabilities are within [c, 1-c].
        answers: Masks of one client.
        delta: δ.

    Returns:
        ε with the draws, and ε of the noise alone.
    """
    import dp_accounting as dp

    orders = [1 + x / 10 for x in range(1, 100)] + [float(x) for x in range(11, 257)]
    plain = [answers * a / (2 * multiplier**2) for a in orders]
    drawn = [answers * min(a / (2 * multiplier**2), d * bernoulli_renyi(a, c)) for a in orders]
    with_draws, without = (float(dp.rdp.compute_epsilon(orders, rdp, delta)[0]) for rdp in (drawn, plain))
    return min(with_draws, without), without
