"""Float32 vectors that change little from one to the next, in fewer bytes and without loss.

Floats as whole numbers that keep their order lie close together when they are close; so the difference to the vector
before is small. Its sign goes to the lowest bit, its bytes to four planes, and each plane is Huffman-coded (zlib).
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import Malformed

Floats = NDArray[np.float32]
_TOP = np.uint32(1 << 31)


def _ordered(a: Floats) -> NDArray[np.uint32]:
    """Bits of floats as whole numbers in the floats' own order."""
    bits = np.ascontiguousarray(a, "<f4").view("<u4")
    return np.where(bits & _TOP, ~bits, bits | _TOP)


def _floats(a: NDArray[np.uint32]) -> Floats:
    return np.where(a & _TOP, a ^ _TOP, ~a).astype("<u4").view("<f4")


def encode(vectors: Floats, base: Floats | None) -> bytes:
    """Rows, each as what changed since the one before; the first since `base`, or zeros where there is none.

    >>> rows = np.float32([[1.0, -2.0], [1.001, -2.001]])
    >>> bool((decode(encode(rows, None), rows.shape, None) == rows).all())
    True
    """
    rows = _ordered(np.vstack([np.zeros_like(vectors[:1]) if base is None else base[None], vectors]))
    change = (rows[1:] - rows[:-1]).view(np.int32)
    zigzag = ((change << 1) ^ (change >> 31)).astype("<u4")
    planes = zigzag.reshape(-1, 1).view(np.uint8)
    coded = [_huffman(np.ascontiguousarray(planes[:, k])) for k in range(4)]
    return b"".join(len(c).to_bytes(4, "little") + c for c in coded)


def _huffman(plane: NDArray[np.uint8]) -> bytes:
    coder = zlib.compressobj(6, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    return coder.compress(plane.tobytes()) + coder.flush()


def decode(data: bytes, shape: tuple[int, int], base: Floats | None) -> Floats:
    """The rows again, to the last bit; never makes more than the shape says."""
    n, at, planes = shape[0] * shape[1], 0, []
    for _ in range(4):
        size = int.from_bytes(data[at : at + 4], "little")
        planes.append(np.frombuffer(_inflated(data[at + 4 : at + 4 + size], n), np.uint8))
        at += 4 + size
    if at != len(data):
        raise Malformed(f"{len(data)} bytes of changes; {at} were announced")
    zigzag = np.stack(planes, 1).reshape(-1).view("<u4").reshape(shape)
    change = (zigzag >> np.uint32(1)) ^ (~(zigzag & np.uint32(1)) + np.uint32(1))
    rows = np.vstack([_ordered(np.zeros((1, shape[1]), np.float32) if base is None else base[None]), change])
    out = _floats(np.cumsum(rows, 0, dtype=np.uint32)[1:])
    if not np.isfinite(out).all():
        raise Malformed(f"{np.count_nonzero(~np.isfinite(out))} of {out.size} numbers are NaN or infinite")
    return out


def _inflated(data: bytes, n: int) -> bytes:
    coder = zlib.decompressobj(-15)
    try:
        out = coder.decompress(data, n + 1)
    except zlib.error as e:
        raise Malformed(f"changes that cannot be unpacked ({e})") from None
    if len(out) != n or not coder.eof or coder.unused_data:
        raise Malformed(f"{len(out)} bytes of changes were packed, {n} were expected")
    return out
