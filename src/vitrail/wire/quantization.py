"""Lossy compression of float32 vectors: each tensor is quantized to a few bits.

The values of a tensor become integer multiples q of one scale, max|x| / L, with q from -L to L; L is 127 for 8 bits and
7 for 4. Rounding is to the nearest, without noise. The receiver computes q times the scale, one float32 operation, so
both sides have the same bits. The difference of q to the previous vector, quantized at the new scale, is range-coded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vitrail.utils.errors import Malformed, VitrailError
from vitrail.wire import range_coder as entropy

Floats = NDArray[np.float32]
Integers = NDArray[np.int32]


def quantize(row: Floats, sizes: Sequence[int], bits: int) -> Floats:
    """Return a vector as its receiver decodes it.

    Args:
        row: The vector, finite.
        sizes: Sizes of its tensors.
        bits: Bits per value.

    Raises:
        VitrailError: If values are not finite or the sizes do not match.

    Examples:
        >>> [round(float(x), 2) for x in quantize(np.float32([1.0, 0.3, -0.6, 80.0]), [3, 1], 4)]
        [1.0, 0.29, -0.57, 80.0]
    """
    scales = _scales(row, sizes, bits)
    return _values(_multiples(row, scales, bits), scales)


def encode(rows: Floats, sizes: Sequence[int], bits: int, before: Floats | None = None) -> bytes:
    """Quantize and encode vectors.

    Args:
        rows: One vector per row, finite.
        sizes: Sizes of the tensors of a vector.
        bits: Bits per value.
        before: Vectors that the receiver already has; the last one is used.

    Raises:
        VitrailError: If values are not finite or the sizes do not match.

    Examples:
        >>> rows = np.float32([[1.0, -2.0], [1.1, -2.1]])
        >>> read = decode(encode(rows, [2], 8), 2, [2], 8)
        >>> all((quantize(row, [2], 8) == found).all() for row, found in zip(rows, read))
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
    """Decode quantized vectors.

    Args:
        data: The output of `encode`.
        rows: Number of vectors.
        sizes: Sizes of the tensors of a vector.
        bits: Bits per value.
        before: The vectors that the sender used.

    Raises:
        Malformed: If the bytes are not an output of `encode` for these sizes.
    """
    last, at = _last(before, sum(sizes)), 0
    out = np.empty((rows, sum(sizes)), np.float32)
    for k in range(rows):
        length, begins = int.from_bytes(data[at : at + 4], "little"), at + 4 + 4 * len(sizes)
        if begins + length > len(data):
            raise Malformed(f"{rows} quantized vectors end within vector {k + 1}")
        per_tensor = np.frombuffer(data, "<f4", len(sizes), at + 4).astype(np.float32)
        if not np.isfinite(per_tensor).all() or np.signbit(per_tensor).any():
            raise Malformed(f"a scale of quantized vector {k + 1} is negative, NaN or infinite")
        scales = np.repeat(per_tensor, sizes)
        coded = np.frombuffer(data, np.uint8, length, begins)
        moved = entropy.decode(coded, np.zeros(sum(sizes), np.int32), _alphabet(bits)).astype(np.int32)
        most = _most(bits)
        q = (moved + _multiples(last, scales, bits) + most) % _alphabet(bits) - most
        out[k] = last = _values(q, scales)
        if not np.isfinite(last).all():
            raise Malformed(f"the scales of quantized vector {k + 1} are too large")
        at = begins + length
    if at != len(data):
        raise Malformed(f"{len(data):,} bytes of quantized vectors; the last ends at {at:,}")
    return out


def _most(bits: int) -> int:
    """Return L, the largest multiple."""
    return (1 << (bits - 1)) - 1


def _alphabet(bits: int) -> int:
    return 2 * _most(bits) + 1


def _last(before: Floats | None, size: int) -> Floats:
    return np.zeros(size, np.float32) if before is None else before[-1].astype(np.float32)


def _scales(row: Floats, sizes: Sequence[int], bits: int) -> Floats:
    """Return the scale of each value: the largest magnitude of its tensor, divided by L."""
    if row.size != sum(sizes) or not np.isfinite(row).all():
        bad = np.count_nonzero(~np.isfinite(row))
        raise VitrailError(f"{row.size:,} values, {bad} not finite, cannot be quantized; expected {sum(sizes):,}")
    largest = np.maximum.reduceat(np.abs(row), np.cumsum([0, *sizes[:-1]]))
    return np.repeat((largest / np.float32(_most(bits))).astype(np.float32), sizes)


def _multiples(row: Floats, scales: Floats, bits: int) -> Integers:
    """Return the nearest multiples of the scales, from -L to L; 0 for a zero scale."""
    most = _most(bits)
    with np.errstate(all="ignore"):
        nearest = np.rint(np.clip(row / scales, -most, most))
    return np.where(scales > 0, nearest, 0).astype(np.int32)


def _values(q: Integers, scales: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return q.astype(np.float32) * scales
