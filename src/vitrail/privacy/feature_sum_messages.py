"""Messages with sums of features (feature_sums.py): their encoding, and the server's check of a client's reply."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrail.privacy.feature_sums import Sums
from vitrail.utils.errors import Malformed
from vitrail.wire.codecs import Array
from vitrail.wire.range_coder import decode_values, encode_values

FINENESS = 8  # noised sums are sent in steps of σ/8: rounding adds 0.13% to the variance of the noise
PLAIN = 0  # in place of a step: integers without noise, sent exactly


@dataclass(frozen=True)
class SumBounds:
    """Bounds on an honest client's noised sums; the server refuses replies outside them.

    Each image adds a vector of norm at most g, without negative elements, to either part of its class, so a part of a
    class of n images has a norm of at most n·g. Noise of this σ, and rounding to the steps that `pack` takes, are
    taken into account: an honest reply is refused with probability below 1e-9.

    Args:
        d: Elements of one part.
        grid: g.
        count: An image's entry in the count.
        sigma: σ of the noise that a client adds; 0 for none.
        most: Images of one class that a client may have.
        total: Images that a client may have in total; 0: unknown.
    """

    d: int
    grid: int
    count: int
    sigma: float
    most: int
    total: int = 0

    def check(self, sums: Sums) -> None:
        """Check one client's sums.

        Args:
            sums: The sums, (classes, 1 + 2d).

        Raises:
            Malformed: The sums cannot be those of as many images as they count, or they count too many.
        """
        from scipy.special import chdtri, ndtri

        rows = sums.astype(np.float64)
        kinds = len(rows)
        tail = -float(ndtri(2e-10 / sums.size)) * self.sigma  # of any single element
        ball = math.sqrt(float(chdtri(self.d, 2e-10 / (2 * kinds)))) * self.sigma  # of the noise on one part
        largest = self.most * self.grid + tail
        step = max(1.0, self.sigma / FINENESS + 0.5, largest / 32767 + 1) if self.sigma else 0.0
        slack = tail + step / 2 + 0.5 * bool(self.sigma)  # the noised sums are rounded, then their steps are
        counted = rows[:, 0]
        if counted.max() > self.most * self.count + slack:
            raise Malformed(
                f"it counts {counted.max() / self.count:,.0f} images of one class; at most {self.most:,} are accepted"
            )
        if self.total and counted.sum() > self.total * self.count + kinds * slack:
            raise Malformed(f"it counts {counted.sum() / self.count:,.0f} images; at most {self.total:,} are accepted")
        if rows.min() < -slack:
            raise Malformed(f"its smallest sum is {rows.min() / self.grid:.4g} images; features are never negative")
        images = (np.maximum(counted, 0.0) + slack) / self.count  # no class has more
        allowed = 1.001 * images * self.grid + ball + (slack - tail) * math.sqrt(self.d)
        for part in (rows[:, 1 : 1 + self.d], rows[:, 1 + self.d :]):
            norms = np.linalg.norm(part, axis=1)
            if (norms > allowed).any():
                worst = int(np.argmax(norms - allowed))
                raise Malformed(
                    f"its sums of class {worst} need at least {norms[worst] / self.grid:,.0f} images; it counts "
                    f"{counted[worst] / self.count:,.0f}"
                )


def pack(sums: Sums, sigma: float) -> NDArray[np.uint8]:
    """Encode sums: entropy-coded in steps of a fraction of the noise, or exactly where there is no noise.

    Args:
        sums: The sums.
        sigma: σ of their noise; 0: none.

    Examples:
        >>> few = np.array([5, -70000, 12])
        >>> unpack(pack(few, 0.0), 3).tolist(), unpack(pack(few, 80.0), 3).tolist()
        ([5, -70000, 12], [0, -70000, 10])
    """
    flat = sums.reshape(-1)
    if not sigma:
        return np.concatenate([np.zeros(4, np.uint8), flat.astype("<i8").view(np.uint8)])
    step = max(1, round(sigma / FINENESS), -(-int(np.abs(flat).max()) // 32767))
    coded = encode_values(np.rint(flat / step).astype(np.int16))
    return np.concatenate([np.array([step], "<u4").view(np.uint8), coded])


def unpack(payload: Array, n: int) -> Sums:
    """Decode n sums.

    Raises:
        Malformed: The bytes are not an encoding of n sums.
    """
    if len(payload) < 5:
        raise Malformed(f"{len(payload)} bytes are not {n} sums")
    step = int(np.frombuffer(payload[:4].tobytes(), "<u4")[0])
    if step == PLAIN:
        if len(payload) != 4 + 8 * n:
            raise Malformed(f"{len(payload)} bytes are not {n} plain sums")
        return np.frombuffer(payload[4:].tobytes(), "<i8").astype(np.int64)
    return decode_values(payload[4:], n).astype(np.int64) * step
