"""Sum parts as whole numbers modulo 2^w: what can be masked, added while masked, and read once masks cancel.

A part's numbers are counted from the least that was declared, so that they run from 0 to `span`, and w is the least for
which the sum of all clients does not wrap: bits of K clients take bit_length(K) bits an element. Floats are the
same 64-bit fixed point that the engine adds up without masks, so that both give the same sum to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.methods.base import PartSpec, fixed_point_scale
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.wire.codecs import Array

Words = NDArray[Any]  # unsigned, of the narrowest type that holds w bits; it wraps by itself


@dataclass(frozen=True)
class Whole:
    """How one sum part travels."""

    size: int
    low: int  # what 0 stands for
    span: int  # the largest that one client may send
    scale: float  # 1 for what is whole already
    width: int  # w, bits an element

    @property
    def dtype(self) -> np.dtype[Any]:
        """The narrowest unsigned type of at least w bits."""
        return np.dtype(f"<u{next(n for n in (1, 2, 4, 8) if 8 * n >= self.width)}")

    @property
    def wire_bytes(self) -> int:
        """Its size on the wire."""
        return -(-self.size * self.width // 8)

    def zeros(self) -> Words:
        """The sum of nobody."""
        return np.zeros(self.size, self.dtype)

    def words(self, array: Array) -> Words:
        """One client's numbers; what lies outside of the declared range does not leave the client."""
        if array.size != self.size:
            raise VitrailError(f"{array.size} elements, declared are {self.size}")
        whole = np.rint(array * np.float64(self.scale)) if array.dtype.kind == "f" else array
        low, high = (whole.min().item(), whole.max().item()) if whole.size else (self.low, self.low)
        if not self.low <= low <= high <= self.low + self.span:  # before the cast, which wraps; NaN is refused, too
            worst = low if low < self.low else high
            least, limit = self.low / self.scale, (self.low + self.span) / self.scale
            raise VitrailError(f"it holds {worst / self.scale:.3g}, outside {least:g} to {limit:g}")
        return (whole.reshape(-1).astype(np.int64) - np.int64(self.low)).astype(self.dtype)

    def total(self, words: Words, clients: int) -> NDArray[np.float64]:
        """The sum of so many clients as numbers again, or a refusal of what they cannot have sent."""
        left = words & self.dtype.type((1 << self.width) - 1)
        if left.size and int(left.max()) > clients * self.span:
            raise Malformed("a sum out of range: a client lied; it cannot be singled out")
        whole = left.astype(np.uint64).view(np.int64) + np.int64(clients * self.low)
        numbers: NDArray[np.float64] = whole / np.float64(self.scale)
        return numbers

    def pack(self, words: Words) -> bytes:
        """To w bits an element, most significant first, without gaps."""
        wide = words.astype(self.dtype.newbyteorder(">"))
        if self.width == 8 * self.dtype.itemsize:
            return wide.tobytes()
        bits = np.unpackbits(wide.view(np.uint8).reshape(self.size, -1), axis=1)
        return np.packbits(bits[:, -self.width :]).tobytes()

    def unpack(self, payload: Array) -> Words:
        """From the bytes of `pack`; the caller has checked their number."""
        if self.width == 8 * self.dtype.itemsize:
            return np.frombuffer(payload, self.dtype.newbyteorder(">")).astype(self.dtype)
        bits = np.unpackbits(payload)
        if bits[self.size * self.width :].any():
            raise Malformed("the last byte has bits set beyond the last element")
        wide = np.zeros((self.size, 8 * self.dtype.itemsize), np.uint8)
        wide[:, -self.width :] = bits[: self.size * self.width].reshape(self.size, self.width)
        return np.packbits(wide).view(self.dtype.newbyteorder(">")).astype(self.dtype)


def layout(declared: Mapping[str, PartSpec], clients: int, among: int) -> dict[str, Whole]:
    """How every sum part travels in a round of `among` out of `clients`, by name in a fixed order.

    >>> layout({"mask": Declared("sum", "u1", 100, limit=1, least=0)}, 10, 10)["mask"].width
    4
    """
    parts = {}
    for name, d in sorted(declared.items()):
        if d.how != "sum" or d.size is None or d.unpack is not None:
            raise VitrailError(f"part {name!r} is not a plain sum of a known size, so it cannot be masked")
        least = max(d.least, -d.limit)
        scale = fixed_point_scale(d.limit, clients) if d.codec.startswith("float") else 1.0
        low, high = (round(least * scale), round(d.limit * scale)) if scale != 1.0 else (
            math.ceil(least), math.floor(d.limit))  # fmt: skip
        width = max(1, (among * (high - low)).bit_length())
        if width > 64:
            raise VitrailError(f"part {name!r} would need {width} bits an element, at most 64 travel: declare less")
        parts[name] = Whole(d.size, low, high - low, scale, width)
    return parts
