"""Where noise comes from, and two laws it follows.

In deployment it comes from the operating system: whoever knows a seed can take the noise away again. In simulation it
comes from the run's own streams, so that a run can be repeated. Both are a `Source`: so many bytes, please.

The discrete Gaussian is that of Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy"
(NeurIPS 2020), Algorithms 2 and 3: rejection from a discrete Laplace, here many candidates at a time. One thing is
not exact: they flip a coin of chance exp(-x) with rational numbers, here a uniform number of 64 bits is compared with
exp(-x) in double precision. A coin is off by at most 2^-51 and a draw flips fewer than 32 on average, so the law of
n draws is off by less than n 2^-46 in total variation; add that to delta where it matters.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng

Source = Callable[[int], bytes]
_AT_ONCE = 1 << 17  # candidates; they fit the cache


def operating_system(n: int) -> bytes:
    """Bytes nobody can know."""
    return os.urandom(n)


def seeded(rng: Rng) -> Source:
    """A stream of bytes that is the same each time, for simulation.

    >>> seeded(Rng((1,)))(4) == seeded(Rng((1,)))(4)
    True
    """
    return rng.numpy().bytes


def gaussian(source: Source, n: int, sigma: float) -> NDArray[np.float64]:
    """Draws from N(0, sigma²): a sign, and a magnitude by the inverse of the law's tail.

    The tail's 63 bits are kept as a float near zero, so magnitudes reach beyond 9 sigma at full precision. What comes
    out are doubles: add them to whole numbers or round the sum before it leaves, since the last bits of a double
    tell more than its value does (Mironov, CCS 2012).
    """
    from scipy.special import ndtri

    raw = np.frombuffer(source(8 * n), "<u8")
    tail = ((raw >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-64  # within (0, 1/2], never 0
    magnitude: NDArray[np.float64] = -ndtri(tail) * _positive(sigma)
    return np.where(raw & np.uint64(1), magnitude, -magnitude)


def discrete_gaussian(source: Source, n: int, sigma: float) -> NDArray[np.int64]:
    """Whole numbers x with chance proportional to exp(-x² / 2 sigma²), Algorithm 3.

    >>> discrete_gaussian(seeded(Rng((1,))), 6, 2.0).dtype.name
    'int64'
    """
    t = math.floor(_positive(sigma)) + 1
    drawn = np.empty(n, np.int64)
    done = 0
    while done < n:
        y = _discrete_laplace(source, min(_AT_ONCE, 3 * (n - done) + 64), t)
        gamma = (np.abs(y) - sigma**2 / t) ** 2 / (2 * sigma**2)
        y = y[_coins(source, gamma)][: n - done]
        drawn[done : done + len(y)] = y
        done += len(y)
    return drawn


def _discrete_laplace(source: Source, tries: int, t: int) -> NDArray[np.int64]:
    """Those of so many tries that give a whole number y, with chance proportional to exp(-|y| / t): Algorithm 2."""
    u = _below(source, tries, t)
    u = u[_coins(source, u / t)]
    v = np.floor(-np.log(_uniforms(source, len(u)))).astype(np.int64)  # heads of chance 1/e until the first tail
    y = u + t * v
    negative = np.frombuffer(source(len(y)), np.uint8) & 1 == 1
    signed: NDArray[np.int64] = np.where(negative, -y, y)[(y != 0) | ~negative]  # zero has one sign only
    return signed


def _coins(source: Source, gamma: NDArray[np.float64]) -> NDArray[np.bool_]:
    """True with chance exp(-gamma)."""
    return _uniforms(source, len(gamma)) < np.exp(-gamma)


def _uniforms(source: Source, n: int) -> NDArray[np.float64]:
    """Numbers within (0, 1], of 64 bits: fine near zero, rounded to a double elsewhere."""
    return (np.frombuffer(source(8 * n), "<u8").astype(np.float64) + 0.5) * 2.0**-64


def _below(source: Source, n: int, t: int) -> NDArray[np.int64]:
    """Whole numbers 0 to t-1, all equally likely: too large ones are drawn again."""
    width = (t - 1).bit_length()
    drawn = np.empty(0, np.int64)
    while len(drawn) < n:
        raw = np.frombuffer(source(8 * (n - len(drawn))), "<u8") & np.uint64((1 << width) - 1)
        drawn = np.concatenate([drawn, raw[raw < t].astype(np.int64)])
    return drawn


def _positive(sigma: float) -> float:
    if not 2.0**-60 <= sigma < 2.0**40:  # NaN is refused, too
        raise VitrailError(f"noise of sigma {sigma}; expected a number from 2^-60 to below 2^40")
    return sigma
