"""Codecs between arrays and bytes. Bytes are not trusted.

A message has the name of each codec. `decode` accepts exactly the output of `encode` and raises `Malformed` for all
other bytes: a wrong length, a value out of range, NaN or infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.utils.errors import Malformed, VitrailError

Array = NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Codec:
    """A named pair of functions between an array and bytes.

    Args:
        name: Name in messages.
        encode: Function from an array to bytes; raises VitrailError for values that do not fit.
        decode: Function from bytes and a shape to an array; raises Malformed for invalid bytes.
    """

    name: str
    encode: Callable[[Array], bytes]
    decode: Callable[[bytes, Shape], Array]


def _fits(payload: bytes, expected: int, name: str, shape: Shape) -> None:
    if len(payload) != expected:
        raise Malformed(f"{name} of shape {shape} has {expected} bytes, got {len(payload)}")


def _number(name: str, dtype: str) -> Codec:
    """Make a codec for plain little-endian arrays; floats must be finite."""
    wire = np.dtype(dtype)

    def encode(a: Array) -> bytes:
        with np.errstate(over="ignore"):
            out = np.asarray(a, dtype=wire, order="C")
        if wire.kind == "f" and not np.isfinite(out).all():
            raise VitrailError(f"{np.count_nonzero(~np.isfinite(out))} of {out.size} numbers are NaN or beyond {name}")
        if wire.kind != "f" and not np.array_equal(out, a):
            raise VitrailError(f"values of {a.dtype} do not fit {name}; use a wider codec")
        return out.tobytes()

    def decode(payload: bytes, shape: Shape) -> Array:
        _fits(payload, math.prod(shape) * wire.itemsize, name, shape)
        a = np.frombuffer(payload, dtype=wire).reshape(shape)
        if wire.kind == "f" and not np.isfinite(a).all():
            raise Malformed(f"{np.count_nonzero(~np.isfinite(a))} of {a.size} numbers are NaN or infinite")
        return a

    return Codec(name, encode, decode)


def pack_bits(words: Array, width: int) -> bytes:
    """Encode unsigned integers with the lowest `width` bits of each, most significant bit first, without gaps."""
    bytes_ = words.astype(words.dtype.newbyteorder(">")).view(np.uint8)
    bits = np.unpackbits(bytes_.reshape(len(words), words.itemsize), axis=1)
    return np.packbits(bits[:, -width:]).tobytes()


def unpack_bits(payload: Array, size: int, width: int) -> NDArray[np.uint8]:
    """Return the bits of the integers that `pack_bits` encoded, one row each; the caller has checked their bytes."""
    bits = np.unpackbits(payload)
    if bits[size * width :].any():
        raise Malformed("the last byte has bits set beyond the last element")
    return bits[: size * width].reshape(size, width)


def join_bits(bits: NDArray[np.uint8], dtype: np.dtype[Any]) -> Array:
    """Return the unsigned integer of each row of bits."""
    wide = np.zeros((len(bits), 8 * dtype.itemsize), np.uint8)
    wide[:, -bits.shape[1] :] = bits
    return np.packbits(wide).view(dtype.newbyteorder(">")).astype(dtype)


def _packed(width: int) -> Codec:
    """Make a codec for unsigned integers of `width` bits, most significant bit first, without gaps; 1 is for masks."""
    name = f"u{width}"

    def encode(a: Array) -> bytes:
        flat = np.asarray(a).reshape(-1)
        if flat.size and (flat.min() < 0 or flat.max() >= 1 << width):
            raise VitrailError(f"values from {flat.min()} to {flat.max()} do not fit {width} bits; use a wider codec")
        return np.packbits(flat.astype(bool)).tobytes() if width == 1 else pack_bits(flat.astype(np.uint16), width)

    def decode(payload: bytes, shape: Shape) -> Array:
        n = math.prod(shape)
        _fits(payload, -(-n * width // 8), name, shape)
        bits = unpack_bits(np.frombuffer(payload, np.uint8), n, width)
        return (bits if width == 1 else join_bits(bits, np.dtype(np.uint16)).astype(np.uint32)).reshape(shape)

    return Codec(name, encode, decode)


CODECS: tuple[Codec, ...] = (
    _number("float32", "<f4"),
    _number("float16", "<f2"),
    _number("bytes", "<u1"),
    _number("int32", "<i4"),
    _number("int64", "<i8"),
    _number("seed", "<u8"),
    *(_packed(width) for width in range(1, 17)),
)
BY_NAME = {codec.name: codec for codec in CODECS}


def bits_for(largest: int) -> str:
    """Return the name of the narrowest packed codec for integers from 0 to `largest`.

    Examples:
        >>> bits_for(1), bits_for(10), bits_for(255)
        ('u1', 'u4', 'u8')
    """
    width = max(1, int(largest).bit_length())
    return "int32" if width > 16 else f"u{width}"
