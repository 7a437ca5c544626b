"""A number with all it takes to read it: interval, sample counts, what it was measured with.

Intervals are of 95% and say how far a figure might lie elsewhere with other pictures, real and generated.
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

Values = NDArray[np.floating[Any]]
Bounded = tuple[float, float, float]  # a value and its bounds


@dataclass(frozen=True)
class Measure:
    """One result with its 95% interval from `low` to `high`."""

    name: str
    value: float
    low: float
    high: float
    n_real: int
    n_fake: int
    better: Literal["lower", "higher", ""]
    extractor: str = ""
    note: str = ""


def with_note(measures: Sequence[Measure], note: str) -> list[Measure]:
    """Return the measures, each with this note first; an empty note changes nothing."""
    return [replace(m, note="; ".join(filter(None, (note, m.note)))) for m in measures]


def share(hits: Values) -> Bounded:
    """The share of ones and Wilson's interval, which does not shrink to nothing where all are ones.

    >>> [round(v, 3) for v in share(np.ones(10))]
    [1.0, 0.722, 1.0]
    """
    n, p = len(hits), float(hits.mean())
    middle = (p + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    return p, max(0.0, min(p, middle - half)), min(1.0, max(p, middle + half))  # rounding must not part them


def bootstrap(values: Sequence[Values], rng: np.random.Generator, of: Callable[..., Any] = lambda a: a) -> Bounded:
    """A function of the means of one or more sets, and its percentile bootstrap over the pictures of each."""
    drawn = np.empty((len(values), REPLICATES))
    for row, v in zip(drawn, values, strict=True):
        for b in range(REPLICATES):
            row[b] = v[rng.integers(len(v), size=len(v))].mean()
    low, high = np.quantile(of(*drawn), [0.025, 0.975])
    return float(of(*(v.mean() for v in values))), float(low), float(high)


def jackknife(
    value: float, without: Sequence[Sequence[float]], kept: Sequence[float], within: tuple[float, float]
) -> Bounded:
    """A value of two sets, its interval from what it is without each of the groups of either set.

    `kept` is the share of each set that was divided into groups. Resampling with replacement is no way here: doubles
    are their own nearest neighbours, and make covariances poorer.
    """
    variance = 0.0
    for values, share_kept in zip(without, kept, strict=True):
        v, g = np.asarray(values), len(values)
        variance += (g - 1) / g * float(((v - v.mean()) ** 2).sum()) * share_kept
    half = Z * math.sqrt(variance)
    return value, max(within[0], value - half), min(within[1], value + half)
