"""Lossless compression of sequences of float32 vectors that change smoothly.

A vector x_k is predicted as x_(k-1) + c (x_(k-1) - x_(k-2)), with c in the message, by single float32 operations, so
that both sides compute the same bits. Floats are mapped to integers of the same order. Of the difference to the
prediction, the bit length is range-coded given the predicted exponent; the bits below the first follow uncoded.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitrail.utils.errors import Malformed
from vitrail.wire import range_coder as entropy

Floats = NDArray[np.float32]
Words = NDArray[np.uint32]
_TOP, _ONE = np.uint32(1 << 31), np.uint32(1)
_UNIT = 64  # c is one byte, in units of 1/64
_LENGTHS = 33  # a difference has 0 to 32 bits


def encode(rows: Floats, before: Floats | None = None) -> bytes:
    """Encode vectors.

    Args:
        rows: One vector per row, finite.
        before: Vectors that the receiver already has; the last two are used for the prediction.

    Examples:
        >>> rows = np.float32([[1.0, -2.0], [1.001, -2.001], [1.002, -2.002]])
        >>> bool((decode(encode(rows), rows.shape) == rows).all())
        True
    """
    history = _history(before, rows.shape[1])
    out = []
    for row in rows.astype(np.float32):
        c = _slope(history, row)
        predicted = _predict(history, c)
        change = (_ordered(row) - _ordered(predicted)).view(np.int32)
        zigzag = ((change << 1) ^ (change >> 31)).view(np.uint32)
        lengths = np.frexp(zigzag.astype(np.float64))[1].astype(np.int64)  # in bits; doubles represent them exactly
        coded = entropy.encode(lengths, _exponent(predicted), _LENGTHS).tobytes()
        out += [bytes([c]), len(coded).to_bytes(4, "little"), coded, _low_bits(zigzag, lengths)]
        history = [history[1], row]
    return b"".join(out)


def decode(data: bytes, shape: tuple[int, int], before: Floats | None = None) -> Floats:
    """Decode vectors; the result equals the encoded rows bit by bit.

    Args:
        data: The output of `encode`.
        shape: Number of vectors and their size.
        before: The vectors that the sender used.

    Raises:
        Malformed: If the bytes are not an output of `encode`.
    """
    history, at = _history(before, shape[1]), 0
    out = np.empty(shape, np.float32)
    for k in range(shape[0]):
        c, size = int.from_bytes(data[at : at + 1]), int.from_bytes(data[at + 1 : at + 5], "little")
        at += 5
        if at + size > len(data):
            raise Malformed(f"deltas of {shape[0]} vectors end within vector {k + 1}")
        predicted = _predict(history, c)
        coded = np.frombuffer(data, np.uint8, size, at)
        lengths = entropy.decode(coded, _exponent(predicted), _LENGTHS)
        zigzag, at = _with_low_bits(lengths, data, at + size)
        out[k] = _floats(_ordered(predicted) + ((zigzag >> _ONE) ^ (~(zigzag & _ONE) + _ONE)))
        if not np.isfinite(out[k]).all():
            raise Malformed(f"{np.count_nonzero(~np.isfinite(out[k]))} of {shape[1]} numbers are NaN or infinite")
        history = [history[1], out[k]]
    if at != len(data):
        raise Malformed(f"{len(data):,} bytes of deltas; the last ends at {at:,}")
    return out


def _history(before: Floats | None, size: int) -> list[Floats]:
    """Return the two vectors before the first; a missing one is assumed equal to the next, or zero."""
    rows = [] if before is None else list(before[-2:].astype(np.float32))
    return [np.zeros(size, np.float32)] * 2 if not rows else [rows[0], rows[-1]]


def _slope(history: list[Floats], row: Floats) -> int:
    """Return the c with the least squared prediction error, in its units."""
    with np.errstate(all="ignore"):
        moved, now = history[1] - history[0], row - history[1]
        c = float(np.dot(moved, now) / np.dot(moved, moved))
    return round(min(max(c, 0.0), 255 / _UNIT) * _UNIT) if np.isfinite(c) else 0


def _predict(history: list[Floats], c: int) -> Floats:
    with np.errstate(all="ignore"):
        step: Floats = history[1] + np.float32(c / _UNIT) * (history[1] - history[0])
    return np.where(np.isfinite(step), step, history[1])


def _ordered(a: Floats) -> Words:
    """Map floats to integers of the same order."""
    bits = a.view(np.uint32)
    return np.where(bits & _TOP, ~bits, bits | _TOP)


def _floats(a: Words) -> Floats:
    return np.where(a & _TOP, a ^ _TOP, ~a).view(np.float32)


def _exponent(a: Floats) -> NDArray[np.uint32]:
    return (a.view(np.uint32) >> np.uint32(23)) & np.uint32(255)


def _low_bits(zigzag: Words, lengths: NDArray[np.int64]) -> bytes:
    """Return all bits below the first, shortest numbers first."""
    pieces = [np.empty(0, np.uint8)]
    for n in range(2, _LENGTHS):
        some = zigzag[lengths == n]
        pieces.append((some[:, None] >> np.arange(n - 1, dtype=np.uint32) & _ONE).astype(np.uint8).ravel())
    return np.packbits(np.concatenate(pieces)).tobytes()


def _with_low_bits(lengths: NDArray[np.integer], data: bytes, at: int) -> tuple[Words, int]:
    """Read the numbers of these bit lengths, whose lower bits start at an offset; return them and the end offset."""
    count = int(np.maximum(lengths.astype(np.int64) - 1, 0).sum())
    end = at + -(-count // 8)
    if end > len(data):
        raise Malformed(f"expected {count:,} bits of deltas, got {8 * (len(data) - at):,}")
    bits = np.unpackbits(np.frombuffer(data, np.uint8, end - at, at))
    if bits[count:].any():
        raise Malformed("the last byte has bits set beyond the last delta")
    zigzag, done = (lengths > 0).astype(np.uint32), 0
    for n in range(2, _LENGTHS):
        here = np.flatnonzero(lengths == n)
        some = bits[done : done + len(here) * (n - 1)].reshape(len(here), n - 1)
        done += some.size
        low = (some.astype(np.uint32) << np.arange(n - 1, dtype=np.uint32)).sum(1, dtype=np.uint32)
        zigzag[here] = (_ONE << np.uint32(n - 1)) | low
    return zigzag, end
