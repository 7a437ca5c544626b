"""Float32 vectors that move steadily, each near where the two before it point: in fewer bytes, without loss.

A vector x_k is predicted as x_(k-1) + c (x_(k-1) - x_(k-2)), with c in the message; single operations on single floats,
so that both sides predict the same to the last bit. Floats as whole numbers in their own order lie close together
when they are close; of the difference to what was predicted, the number of bits is entropy-coded under the predicted
exponent, and the bits below the first follow as they are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitrail.utils.errors import Malformed
from vitrail.wire import entropy

Floats = NDArray[np.float32]
Words = NDArray[np.uint32]
_TOP, _ONE = np.uint32(1 << 31), np.uint32(1)
_UNIT = 64  # c in sixty-fourths, a byte
_LENGTHS = 33  # a difference has 0 to 32 bits


def encode(rows: Floats, before: Floats | None = None) -> bytes:
    """Rows in their order; `before` are rows that the reader has already, of which two at most count.

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
        lengths = _length(zigzag)
        coded = entropy.encode(lengths, _exponent(predicted), _LENGTHS).tobytes()
        out += [bytes([c]), len(coded).to_bytes(4, "little"), coded, _low_bits(zigzag, lengths)]
        history = [history[1], row]
    return b"".join(out)


def decode(data: bytes, shape: tuple[int, int], before: Floats | None = None) -> Floats:
    """The rows again, to the last bit; anything but what `encode` makes is refused."""
    history, at = _history(before, shape[1]), 0
    out = np.empty(shape, np.float32)
    for k in range(shape[0]):
        c, size = int.from_bytes(data[at : at + 1]), int.from_bytes(data[at + 1 : at + 5], "little")
        at += 5
        if at + size > len(data):
            raise Malformed(f"changes of {shape[0]} vectors break off in number {k + 1}")
        predicted = _predict(history, c)
        coded = np.frombuffer(data, np.uint8, size, at)
        lengths = entropy.decode(coded, _exponent(predicted), _LENGTHS)
        zigzag, at = _with_low_bits(lengths, data, at + size)
        out[k] = _floats(_ordered(predicted) + ((zigzag >> _ONE) ^ (~(zigzag & _ONE) + _ONE)))
        if not np.isfinite(out[k]).all():
            raise Malformed(f"{np.count_nonzero(~np.isfinite(out[k]))} of {shape[1]} numbers are NaN or infinite")
        history = [history[1], out[k]]
    if at != len(data):
        raise Malformed(f"{len(data):,} bytes of changes; the last ends at {at:,}")
    return out


def _history(before: Floats | None, size: int) -> list[Floats]:
    """The two vectors before the first: where one is missing it is taken not to have moved."""
    rows = [] if before is None else list(before[-2:].astype(np.float32))
    return [np.zeros(size, np.float32)] * 2 if not rows else [rows[0], rows[-1]]


def _slope(history: list[Floats], row: Floats) -> int:
    """The c that predicts best in the mean square, in its units."""
    with np.errstate(all="ignore"):
        moved, now = history[1] - history[0], row - history[1]
        c = float(np.dot(moved, now) / np.dot(moved, moved))
    return round(min(max(c, 0.0), 255 / _UNIT) * _UNIT) if np.isfinite(c) else 0


def _predict(history: list[Floats], c: int) -> Floats:
    with np.errstate(all="ignore"):
        step: Floats = history[1] + np.float32(c / _UNIT) * (history[1] - history[0])
    return np.where(np.isfinite(step), step, history[1])


def _ordered(a: Floats) -> Words:
    """Bits of floats as whole numbers in the floats' own order."""
    bits = a.view(np.uint32)
    return np.where(bits & _TOP, ~bits, bits | _TOP)


def _floats(a: Words) -> Floats:
    return np.where(a & _TOP, a ^ _TOP, ~a).view(np.float32)


def _exponent(a: Floats) -> NDArray[np.uint32]:
    return (a.view(np.uint32) >> np.uint32(23)) & np.uint32(255)


def _length(a: Words) -> NDArray[np.int64]:
    """How many bits a whole number has; doubles hold them exactly."""
    return np.frexp(a.astype(np.float64))[1].astype(np.int64)


def _low_bits(zigzag: Words, lengths: NDArray[np.int64]) -> bytes:
    """All bits below the first, of the shortest numbers first."""
    pieces = [np.empty(0, np.uint8)]
    for n in range(2, _LENGTHS):
        some = zigzag[lengths == n]
        pieces.append((some[:, None] >> np.arange(n - 1, dtype=np.uint32) & _ONE).astype(np.uint8).ravel())
    return np.packbits(np.concatenate(pieces)).tobytes()


def _with_low_bits(lengths: NDArray[np.integer], data: bytes, at: int) -> tuple[Words, int]:
    """The numbers of these lengths whose lower bits begin at a place, and where they end."""
    count = int(np.maximum(lengths.astype(np.int64) - 1, 0).sum())
    end = at + -(-count // 8)
    if end > len(data):
        raise Malformed(f"{count:,} bits of changes were announced, {8 * (len(data) - at):,} are there")
    bits = np.unpackbits(np.frombuffer(data, np.uint8, end - at, at))
    if bits[count:].any():
        raise Malformed("the last byte has bits set beyond the last change")
    zigzag, done = (lengths > 0).astype(np.uint32), 0
    for n in range(2, _LENGTHS):
        here = np.flatnonzero(lengths == n)
        some = bits[done : done + len(here) * (n - 1)].reshape(len(here), n - 1)
        done += some.size
        zigzag[here] = (_ONE << np.uint32(n - 1)) | (some.astype(np.uint32) << np.arange(n - 1, dtype=np.uint32)).sum(
            1, dtype=np.uint32
        )
    return zigzag, end
