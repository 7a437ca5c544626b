"""Float32 vectors rounded to a few bits, tensor by tensor: what is sent is less than what the sender has.

A tensor's numbers become whole multiples q of one scale, max|x| / L, with q from -L to L; L is 127 for 8 bits, 7 for 4.
The rounding is to the nearest and has no noise: the same vector gives the same bytes. The reader has q times the scale,
a single operation on single floats, so that sender and reader have the same bits of it. What is coded of q is its
distance from where the row before would be at the new scale; rows that move little take less than their bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vitrail.utils.errors import Malformed, VitrailError
from vitrail.wire import entropy

Floats = NDArray[np.float32]
Whole = NDArray[np.int32]


def rounded(row: Floats, sizes: Sequence[int], bits: int) -> Floats:
    """A vector, whose tensors have these sizes, as its reader will have it.

    >>> [round(float(x), 2) for x in rounded(np.float32([1.0, 0.3, -0.6, 80.0]), [3, 1], 4)]
    [1.0, 0.29, -0.57, 80.0]
    """
    scales = _scales(row, sizes, bits)
    return _values(_multiples(row, scales, bits), scales)


def encode(rows: Floats, sizes: Sequence[int], bits: int, before: Floats | None = None) -> bytes:
    """Rows that are not rounded yet; of `before`, rows that the reader has already, the last counts.

    >>> rows = np.float32([[1.0, -2.0], [1.1, -2.1]])
    >>> read = decode(encode(rows, [2], 8), 2, [2], 8)
    >>> all((rounded(row, [2], 8) == found).all() for row, found in zip(rows, read))
    True
    """
    last, out = _last(before, sum(sizes)), []
    for row in rows.astype(np.float32):
        scales = _scales(row, sizes, bits)
        q = _multiples(row, scales, bits)
        moved = (q - _multiples(last, scales, bits)) % _alphabet(bits)
        coded = entropy.encode(moved, np.zeros_like(q), _alphabet(bits)).tobytes()
        per_tensor = scales[np.cumsum([0, *sizes[:-1]])]
        out += [len(coded).to_bytes(4, "little"), per_tensor.astype("<f4").tobytes(), coded]
        last = _values(q, scales)
    return b"".join(out)


def decode(data: bytes, rows: int, sizes: Sequence[int], bits: int, before: Floats | None = None) -> Floats:
    """So many rows as they were rounded; what cannot be numbers of these sizes is refused."""
    last, at = _last(before, sum(sizes)), 0
    out = np.empty((rows, sum(sizes)), np.float32)
    for k in range(rows):
        length, begins = int.from_bytes(data[at : at + 4], "little"), at + 4 + 4 * len(sizes)
        if begins + length > len(data):
            raise Malformed(f"{rows} rounded vectors break off in number {k + 1}")
        per_tensor = np.frombuffer(data, "<f4", len(sizes), at + 4).astype(np.float32)
        if not np.isfinite(per_tensor).all() or np.signbit(per_tensor).any():
            raise Malformed(f"a scale of rounded vector {k + 1} is negative, NaN or infinite")
        scales = np.repeat(per_tensor, sizes)
        coded = np.frombuffer(data, np.uint8, length, begins)
        moved = entropy.decode(coded, np.zeros(sum(sizes), np.int32), _alphabet(bits)).astype(np.int32)
        most = _most(bits)
        q = (moved + _multiples(last, scales, bits) + most) % _alphabet(bits) - most
        out[k] = last = _values(q, scales)
        if not np.isfinite(last).all():
            raise Malformed(f"the scales of rounded vector {k + 1} are too large")
        at = begins + length
    if at != len(data):
        raise Malformed(f"{len(data):,} bytes of rounded vectors; the last ends at {at:,}")
    return out


def _most(bits: int) -> int:
    """L, the largest multiple."""
    return (1 << (bits - 1)) - 1


def _alphabet(bits: int) -> int:
    return 2 * _most(bits) + 1


def _last(before: Floats | None, size: int) -> Floats:
    return np.zeros(size, np.float32) if before is None else before[-1].astype(np.float32)


def _scales(row: Floats, sizes: Sequence[int], bits: int) -> Floats:
    """Every number's scale: its tensor's largest magnitude over L."""
    if row.size != sum(sizes) or not np.isfinite(row).all():
        raise VitrailError(f"{row.size:,} numbers, {np.count_nonzero(~np.isfinite(row))} not finite, cannot be rounded")
    largest = np.maximum.reduceat(np.abs(row), np.cumsum([0, *sizes[:-1]]))
    return np.repeat((largest / np.float32(_most(bits))).astype(np.float32), sizes)


def _multiples(row: Floats, scales: Floats, bits: int) -> Whole:
    """The nearest multiples of their scales, from -L to L; 0 where the scale is."""
    most = _most(bits)
    with np.errstate(all="ignore"):
        nearest = np.rint(np.clip(row / scales, -most, most))
    return np.where(scales > 0, nearest, 0).astype(np.int32)


def _values(q: Whole, scales: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return q.astype(np.float32) * scales
