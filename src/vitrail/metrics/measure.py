"""A measured value with its interval, sample counts and feature network.

Intervals are 95% intervals over the choice of images, real and generated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

REPLICATES = 200
GROUPS = 10
Z = 1.96
UNSET = -1  # a number of images that the evaluation adds

Values = NDArray[np.floating[Any]]
Bounded = tuple[float, float, float]  # a value and its bounds


@dataclass(frozen=True)
class Measure:
    """One result of a metric.

    Args:
        name: Name of the measure.
        value: Its value.
        low: Lower end of its 95% interval; NaN: no interval.
        high: Upper end of its 95% interval; NaN: no interval.
        n_real: Number of real images; by default that of the evaluation.
        n_fake: Number of generated images; by default that of the evaluation.
        better: Which direction is better; empty: neither.
        extractor: What it was measured with, such as the feature network.
        note: What a reader must know about the value.

    Examples:
        >>> m = Measure("accuracy", 0.9, 0.87, 0.93, 400, 0, "higher")
        >>> f"{m.name} {m.value} ({m.low} to {m.high})"
        'accuracy 0.9 (0.87 to 0.93)'
    """

    name: str
    value: float
    low: float = math.nan
    high: float = math.nan
    n_real: int = UNSET
    n_fake: int = UNSET
    better: Literal["lower", "higher", ""] = ""
    extractor: str = ""
    note: str = ""


def with_note(measures: Sequence[Measure], note: str) -> list[Measure]:
    """Return the measures with this note in front of their own; an empty note changes nothing."""
    return [replace(m, note="; ".join(filter(None, (note, m.note)))) for m in measures]


def share(hits: Values) -> Bounded:
    """Return the share of ones and its Wilson interval, which has a positive width even if all are ones.

    Examples:
        >>> [round(v, 3) for v in share(np.ones(10))]
        [1.0, 0.722, 1.0]
    """
    n, p = len(hits), float(hits.mean())
    middle = (p + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    return p, max(0.0, min(p, middle - half)), min(1.0, max(p, middle + half))  # rounding must not exclude p


def bootstrap(values: Sequence[Values], rng: np.random.Generator, of: Callable[..., Any] = lambda a: a) -> Bounded:
    """Return a function of the means of one or more sets and its percentile bootstrap interval.

    Args:
        values: One value per image of each set; images are resampled within each set.
        rng: Source of the random numbers.
        of: Function of the means.
    """
    drawn = np.empty((len(values), REPLICATES))
    for row, v in zip(drawn, values, strict=True):
        for b in range(REPLICATES):
            row[b] = v[rng.integers(len(v), size=len(v))].mean()
    low, high = np.quantile(of(*drawn), [0.025, 0.975])
    return float(of(*(v.mean() for v in values))), float(low), float(high)


def jackknife(
    value: float, without: Sequence[Sequence[float]], shares: Sequence[float], within: tuple[float, float]
) -> Bounded:
    """Return a value of two sets and its jackknife interval.

    Resampling with replacement does not work here: duplicates are nearest neighbours of each other and reduce the rank
    of covariances.

    Args:
        value: The value of the whole sets.
        without: The values without each of the groups, for each set.
        shares: The share of each set that was divided into groups.
        within: Limits of the interval.
    """
    variance = 0.0
    for values, part in zip(without, shares, strict=True):
        v, g = np.asarray(values), len(values)
        variance += (g - 1) / g * float(((v - v.mean()) ** 2).sum()) * part
    half = Z * math.sqrt(variance)
    return value, max(within[0], value - half), min(within[1], value + half)
