"""Scores s and probabilities θ = sigmoid(s) in fixed-point arithmetic, so that all machines have the same bits.

A score is a 16-bit integer in units of 1/1024; one unit changes θ by less than 0.00025. All values that both sides must
agree on (initial scores, averages of masks as scores, MADA's step, levels for the coder) are computed in integers.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from vitrail.utils.rng import Rng

GRID = 1024
LIMIT = 2**15 - 1  # ±32: θ is 0 or 1 in float32
ONE = 1 << 16  # MADA's λ is in units of 1/65536

Scores = NDArray[np.int16]


def on_grid(s: NDArray[np.floating]) -> Scores:
    """Round real scores to units of 1/1024.

    Examples:
        >>> on_grid(np.array([0.5, -1.00001, 99.0])).tolist()
        [512, -1024, 32767]
    """
    return np.clip(np.rint(np.float64(s) * GRID), -LIMIT, LIMIT).astype(np.int16)


def real(s: Scores) -> NDArray[np.float32]:
    """Convert scores to float32, exactly."""
    return s.astype(np.float32) / np.float32(GRID)


def theta(s: Scores) -> NDArray[np.float64]:
    """Return θ = sigmoid(s)."""
    by_score = 1 / (1 + np.exp(-np.arange(-LIMIT - 1, LIMIT + 1) / GRID))
    return by_score[s.astype(np.int32) + LIMIT + 1]


def from_theta(theta: NDArray[np.floating], clamp: float) -> Scores:
    """Return s = logit(θ), with θ clipped to [clamp, 1 - clamp] so that scores are finite."""
    inside = np.clip(np.float64(theta), clamp, 1 - clamp)
    return on_grid(np.log(inside) - np.log1p(-inside))


def from_counts(counts: NDArray[np.integer], clients: int, clamp: float) -> Scores:
    """Return s = logit(θ), where θ is the fraction of masks with a one.

    Args:
        counts: Number of masks with a one, for each element.
        clients: Number of masks.
        clamp: See `from_theta`.

    Examples:
        >>> from_counts(np.array([0, 1, 2]), 2, 0.02).tolist()
        [-3985, 0, 3985]
    """
    return from_theta(np.arange(clients + 1) / clients, clamp)[counts]


def first(seed: int, size: int, how: str, std: float) -> Scores:
    """Draw the initial scores: N(0, std²), or with uniform θ for how="uniform"."""
    draw = Rng((seed,)).child("scores").numpy()
    if how == "uniform":
        return from_theta(draw.random(size, np.float32), 1e-3)
    return on_grid(std * draw.standard_normal(size, np.float32))


def distance(s_t: Scores, s_agg: Scores, sample: np.random.Generator | None = None) -> int:
    """Return MADA's λ: the fraction of positions where M_t ~ Bern(θ_t) and M ~ Bern(θ_agg) differ.

    Args:
        s_t: Scores of the last round.
        s_agg: Aggregated scores.
        sample: Generator to sample the masks; None: return the expectation.

    Returns:
        An integer in units of 1/65536. For equal scores it is the mean of 2θ(1-θ), not 0.
    """
    a, b = theta(s_t), theta(s_agg)
    if sample is None:
        return round(ONE * float((a * (1 - b) + b * (1 - a)).mean()))
    return round(ONE * float(((sample.random(a.shape) < a) != (sample.random(b.shape) < b)).mean()))


def step(s_t: Scores, s_agg: Scores, lam: int) -> Scores:
    """Return MADA's step s_{t+1} = (1 - λ) s_t + λ s_agg, with λ in units of 1/65536.

    Examples:
        >>> step(np.array([0, 100, -7], np.int16), np.array([1024, 100, 7], np.int16), ONE // 4).tolist()
        [256, 100, -3]
    """
    change = (s_agg.astype(np.int64) - s_t) * lam
    return (s_t + ((change + ONE // 2) >> 16)).astype(np.int16)


_FINEST = GRID // 8
_WIDEST = math.ceil(4.5 * GRID / _FINEST)


def levels(s: Scores, symbols: int = 2) -> NDArray[np.uint8]:
    """Return the level of each element for the range coder: its score in units of 1/8, or coarser.

    Coarser units are used if the symbol tables of all levels would need more than a tenth of packed bits.

    Args:
        s: The scores.
        symbols: Size of the alphabet.

    Examples:
        >>> levels(np.array([-9000, 0, 130, 9000] * 1000, np.int16))[:4].tolist()
        [0, 36, 37, 72]
    """
    fine = np.clip((s.astype(np.int32) + _FINEST // 2) // _FINEST, -_WIDEST, _WIDEST) + _WIDEST
    occur = np.count_nonzero(np.bincount(fine))
    coarser = 1 + int(occur * (symbols - 1) * 1.5 / (1 + len(s) / 80))
    return (fine // coarser).astype(np.uint8)
