"""Scores s and probabilities θ = sigmoid(s) on a grid of whole numbers, so that every machine has the same bits.

A score is a 16-bit whole number of 1/1024: θ moves by less than 0.00025 a step. What both sides must agree on (the
first scores, the average of masks turned into scores, MADA's step, the levels a coder knows) is whole-number
arithmetic from there on; only training itself uses floats.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from vitrail.utils.rng import Rng

GRID = 1024
LIMIT = 2**15 - 1  # ±32: θ is 0 or 1 to float32's last bit
ONE = 1 << 16  # MADA's λ as a whole number of 1/65536

Scores = NDArray[np.int16]


def on_grid(s: NDArray[np.floating]) -> Scores:
    """Real scores, rounded.

    >>> on_grid(np.array([0.5, -1.00001, 99.0])).tolist()
    [512, -1024, 32767]
    """
    whole: Scores = np.clip(np.rint(np.float64(s) * GRID), -LIMIT, LIMIT).astype(np.int16)
    return whole


def real(s: Scores) -> NDArray[np.float32]:
    """Scores as float32, exactly."""
    return s.astype(np.float32) / np.float32(GRID)


def theta(s: Scores) -> NDArray[np.float64]:
    """θ = sigmoid(s)."""
    by_score = 1 / (1 + np.exp(-np.arange(-LIMIT - 1, LIMIT + 1) / GRID))
    found: NDArray[np.float64] = by_score[s.astype(np.int32) + LIMIT + 1]
    return found


def from_theta(theta: NDArray[np.floating], clamp: float) -> Scores:
    """s = logit(θ), θ kept within [clamp, 1 - clamp] so that scores stay finite."""
    inside = np.clip(np.float64(theta), clamp, 1 - clamp)
    return on_grid(np.log(inside) - np.log1p(-inside))


def from_counts(counts: NDArray[np.integer], clients: int, clamp: float) -> Scores:
    """s = logit(θ), θ the share of masks that have an element.

    >>> from_counts(np.array([0, 1, 2]), 2, 0.02).tolist()
    [-3985, 0, 3985]
    """
    by_count = from_theta(np.arange(clients + 1) / clients, clamp)
    found: Scores = by_count[counts]
    return found


def first(seed: int, size: int, how: str, std: float) -> Scores:
    """Scores before the first round: N(0, std²), or such that θ is uniform."""
    draw = Rng((seed,)).child("scores").numpy()
    if how == "uniform":
        return from_theta(draw.random(size, np.float32), 1e-3)
    return on_grid(std * draw.standard_normal(size, np.float32))


def distance(s_t: Scores, s_agg: Scores, sample: np.random.Generator | None = None) -> int:
    """MADA's λ: the share of positions where M_t ~ Bern(θ_t) and M ~ Bern(θ_agg) differ, sampled or expected.

    It is a whole number of 1/65536. Where nothing changed it is still the mean of 2θ(1-θ), not 0.
    """
    a, b = theta(s_t), theta(s_agg)
    if sample is None:
        return round(ONE * float((a * (1 - b) + b * (1 - a)).mean()))
    return round(ONE * float(((sample.random(a.shape) < a) != (sample.random(b.shape) < b)).mean()))


def step(s_t: Scores, s_agg: Scores, lam: int) -> Scores:
    """MADA: s_{t+1} = (1 - λ) s_t + λ s_agg.

    >>> step(np.array([0, 100, -7], np.int16), np.array([1024, 100, 7], np.int16), ONE // 4).tolist()
    [256, 100, -3]
    """
    change = (s_agg.astype(np.int64) - s_t) * lam
    moved: Scores = (s_t + ((change + ONE // 2) >> 16)).astype(np.int16)
    return moved


_FINEST = GRID // 8
_WIDEST = math.ceil(4.5 * GRID / _FINEST)


def levels(s: Scores, symbols: int = 2) -> NDArray[np.uint8]:
    """What a coder knows of each element: its score to an eighth, or coarser where a table of so many symbols for each
    level that occurs would take more than a tenth of packed bits.

    >>> levels(np.array([-9000, 0, 130, 9000] * 1000, np.int16))[:4].tolist()
    [0, 36, 37, 72]
    """
    fine = np.clip((s.astype(np.int32) + _FINEST // 2) // _FINEST, -_WIDEST, _WIDEST) + _WIDEST
    occur = np.count_nonzero(np.bincount(fine))
    coarser = 1 + int(occur * (symbols - 1) * 1.5 / (1 + len(s) / 80))
    found: NDArray[np.uint8] = (fine // coarser).astype(np.uint8)
    return found
