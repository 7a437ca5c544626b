"""Sources of random bytes, and Gaussian and discrete Gaussian noise from them.

In deployment the source is the operating system: anyone who knows a seed can remove the noise. In simulation it is the
run's random stream, so that a run can be repeated. A `Source` is a function that returns n random bytes.
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
_AT_ONCE = 1 << 17  # candidates per batch; they fit the cache


def operating_system(n: int) -> bytes:
    """Return n random bytes from the operating system."""
    return os.urandom(n)


def seeded(rng: Rng) -> Source:
    """Return a reproducible source, for simulation.

    Examples:
        >>> seeded(Rng((1,)))(4) == seeded(Rng((1,)))(4)
        True
    """
    return rng.numpy().bytes


def gaussian(source: Source, n: int, sigma: float) -> NDArray[np.float64]:
    """Draw n numbers from N(0, sigma²): a sign, and a magnitude by the inverse of the tail probability.

    The tail probability is a float near zero with 63 bits, so magnitudes reach beyond 9 sigma at full precision. Add
    the numbers to integers, or round the sum before it leaves: the last bits of a double reveal more than its value
    (Mironov, CCS 2012).

    Args:
        source: Source of random bytes.
        n: Number of draws.
        sigma: Standard deviation.

    Returns:
        n independent draws.

    Raises:
        VitrailError: `sigma` is not within [2^-60, 2^40).

    Examples:
        >>> draws = gaussian(seeded(Rng((1,))), 1000, 2.0)
        >>> len(draws), bool(1.8 < draws.std() < 2.2)
        (1000, True)
    """
    from scipy.special import ndtri

    raw = np.frombuffer(source(8 * n), "<u8")
    tail = ((raw >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-64  # within (0, 1/2], never 0
    magnitude: NDArray[np.float64] = -ndtri(tail) * _positive(sigma)
    return np.where(raw & np.uint64(1), magnitude, -magnitude)


def discrete_gaussian(source: Source, n: int, sigma: float) -> NDArray[np.int64]:
    """Draw n integers x with probability proportional to exp(-x² / 2 sigma²).

    Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (NeurIPS 2020), Algorithms 2 and 3:
    rejection from a discrete Laplace, here many candidates at a time. One step is not exact: a Bernoulli draw of
    probability exp(-x) compares a uniform number of 64 bits with exp(-x) in double precision instead of rational
    numbers. Its probability is off by at most 2^-51, and a draw needs fewer than 32 of them on average, so the
    distribution of n draws is off by less than n 2^-46 in total variation; add that to delta where it matters.

    Args:
        source: Source of random bytes.
        n: Number of draws.
        sigma: Standard deviation of the continuous Gaussian of the same form.

    Raises:
        VitrailError: `sigma` is not within [2^-60, 2^40).

    Examples:
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
    """Return the accepted of `tries` integers y, with probability proportional to exp(-|y| / t): Algorithm 2."""
    u = _below(source, tries, t)
    u = u[_coins(source, u / t)]
    v = np.floor(-np.log(_uniforms(source, len(u)))).astype(np.int64)  # geometric, of probability 1/e
    y = u + t * v
    negative = np.frombuffer(source(len(y)), np.uint8) & 1 == 1
    return np.asarray(np.where(negative, -y, y)[(y != 0) | ~negative])  # zero has one sign only


def _coins(source: Source, gamma: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return True with probability exp(-gamma)."""
    return _uniforms(source, len(gamma)) < np.exp(-gamma)


def _uniforms(source: Source, n: int) -> NDArray[np.float64]:
    """Return uniform numbers within (0, 1], of 64 bits: fine near zero, rounded to a double elsewhere."""
    return (np.frombuffer(source(8 * n), "<u8").astype(np.float64) + 0.5) * 2.0**-64


def _below(source: Source, n: int, t: int) -> NDArray[np.int64]:
    """Return uniform integers from 0 to t-1; larger ones are drawn again."""
    width = (t - 1).bit_length()
    drawn = np.empty(0, np.int64)
    while len(drawn) < n:
        raw = np.frombuffer(source(8 * (n - len(drawn))), "<u8") & np.uint64((1 << width) - 1)
        drawn = np.concatenate([drawn, raw[raw < t].astype(np.int64)])
    return drawn


def _positive(sigma: float) -> float:
    if not 2.0**-60 <= sigma < 2.0**40:  # also refuses NaN
        raise VitrailError(f"noise of sigma {sigma}; expected a number from 2^-60 to below 2^40")
    return sigma
