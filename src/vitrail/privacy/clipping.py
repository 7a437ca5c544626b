"""Clip vectors to a norm and add Gaussian noise: the two steps of every Gaussian mechanism."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.privacy.noise import Source, gaussian

_MARGIN = 1 - 2.0**-30  # far above what rounding in fixed-point sums may add


def clipped(vector: NDArray[Any], clip: float, codec: str = "float32") -> NDArray[Any]:
    """Scale a vector to a norm of at most `clip`, in the precision in which it is sent.

    The norm is that of the rounded numbers, so it holds for what arrives.

    Args:
        vector: The vector; if it is not finite, the result is zeros.
        clip: Largest L2 norm.
        codec: "float32" or "float16".

    Returns:
        The vector in the type of `codec`.

    Examples:
        >>> [round(float(x), 3) for x in clipped(np.array([3.0, 4.0]), 1.0)]
        [0.6, 0.8]
    """
    exact = np.asarray(vector, np.float64)
    with np.errstate(over="ignore"):  # a norm that overflows is not finite either
        norm = float(np.linalg.norm(exact))
    if not math.isfinite(norm):
        return np.zeros(exact.shape, codec)
    exact = exact * min(1.0, clip / norm) if norm > 0 else exact
    found = exact.astype(codec)
    while np.linalg.norm(found.astype(np.float64)) > clip * _MARGIN:
        exact = exact * (1 - 2.0**-20 if codec == "float32" else 1 - 2.0**-12)
        found = exact.astype(codec)
    return found


def clipped_rows(rows: NDArray[Any], clip: float) -> NDArray[np.float64]:
    """Scale each row to a norm of at most `clip`; rows that are not finite become zeros.

    Examples:
        >>> clipped_rows(np.array([[3.0, 4.0], [0.3, 0.4], [np.inf, 0.0]]), 1.0).round(6).tolist()
        [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]
    """
    exact = np.asarray(rows, np.float64)
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(exact, axis=1, keepdims=True)
    usable, most = np.isfinite(norms), clip * _MARGIN
    return np.where(usable, exact, 0.0) * (most / np.maximum(np.where(usable, norms, most), most))


def noised(vector: NDArray[Any], sigma: float, source: Source) -> NDArray[np.float64]:
    """Add N(0, sigma²) to each element and round to a grid far finer than the noise.

    The grid hides the last bits of a double, which reveal more than its value (Mironov, CCS 2012). Rounding after the
    noise does not weaken the guarantee.

    Args:
        vector: The vector.
        sigma: Standard deviation of the noise.
        source: Source of random bytes.

    Returns:
        The noisy vector, as float64.

    Raises:
        VitrailError: `sigma` is not a positive number in range.

    Examples:
        >>> from vitrail.privacy.noise import operating_system
        >>> bool(noised(np.zeros(1000), 0.1, operating_system).std() < 0.2)
        True
    """
    noise = gaussian(source, vector.size, sigma)  # first: it refuses an invalid sigma
    grid = 2.0 ** (math.floor(math.log2(sigma)) - 20)
    return np.rint((np.asarray(vector, np.float64) + noise) / grid) * grid
