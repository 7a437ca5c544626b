"""Exchanges of secure aggregation and the parts of their messages.

Sum parts are integers modulo 2^w, relative to the declared minimum, so they range from 0 to `span`; w is the smallest
width for which the sum of all clients does not wrap. Floats use the 64-bit fixed point of sums without masks
(engines/sums.py), so both give the same sum to the bit.
"""

# 0 advertise   client -> server: public keys for letters and masks, a commitment to the seed of its own mask, signed
# 1 share       client -> other clients: shares of that seed and of its mask key, one encrypted letter each
# 2 mask        client -> server: the method's own round; its sum parts as integers under all masks
# 3 confirm     client -> server: a signature over the clients, their keys, and whose masked replies arrived
# 4 open        client -> server: for each client one share: of the seed if its reply arrived, else of its mask key

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.methods.base import PartSpec, fixed_point_scale
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.wire.codecs import Array, join_bits, pack_bits, unpack_bits
from vitrail.wire.message import Message, Part, make_part

ADVERTISE, SHARES, MASK, CONFIRM, OPEN = range(5)
PREFIX = "secagg."  # of the names of all parts below; one array each, in the order of the clients' names
KEYS, WHO, FROM, LETTERS, ALIVE, SIGNATURES, OPENED = (
    PREFIX + name for name in ("keys", "who", "from", "letters", "alive", "signatures", "opened")
)

Words = NDArray[Any]  # unsigned, of the narrowest type with at least w bits; its overflow is the reduction modulo 2^w


def bytes_part(name: str, raw: bytes) -> Part:
    """Encode bytes as a part."""
    array: Array = np.frombuffer(raw, np.uint8)
    return make_part(name, "bytes", array)


def bits_part(name: str, bits: list[bool]) -> Part:
    """Encode one bit per client as a part."""
    return make_part(name, "u1", np.array(bits, np.uint8))


def read_bytes(message: Message, name: str, size: int) -> bytes:
    """Return a part of a request that has a known number of bytes; raise Malformed if it has not."""
    raw = next((bytes(p.array()) for p in message.parts if p.name == name and p.codec == "bytes"), b"")
    if len(raw) != size:
        raise Malformed(f"part {name!r} of the request has {len(raw)} bytes; {size} are expected")
    return raw


def read_bits(message: Message, name: str, size: int) -> list[int]:
    """Return a part of a request that has one bit per client; raise Malformed if it has not."""
    for p in message.parts:
        if (p.name, p.codec, p.shape) == (name, "u1", (size,)):
            return p.array().tolist()
    raise Malformed(f"part {name!r} of the request is not {size} bits")


def write_names(names: list[str]) -> bytes:
    """Encode a list of clients."""
    return json.dumps(names, ensure_ascii=False, separators=(",", ":")).encode()


def read_names(message: Message) -> list[str]:
    """Return the list of clients in a request; raise Malformed if there is none."""
    text = next((bytes(p.array()) for p in message.parts if p.name == WHO), b"")
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names) or write_names(names) != text:
        raise Malformed("the request does not list the clients of the round")
    return names


@dataclass(frozen=True)
class IntegerFormat:
    """Integer format of one sum part.

    Args:
        size: Number of elements.
        low: Integer that is stored as 0.
        span: Largest stored value of one client.
        scale: Fixed-point scale; 1 for integers.
        width: w, bits per element.
    """

    size: int
    low: int
    span: int
    scale: float
    width: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The narrowest unsigned type of at least w bits."""
        return np.dtype(f"<u{next(n for n in (1, 2, 4, 8) if 8 * n >= self.width)}")

    @property
    def wire_bytes(self) -> int:
        """Number of bytes on the wire."""
        return -(-self.size * self.width // 8)

    def words(self, array: Array) -> Words:
        """Convert one client's array.

        Raises:
            VitrailError: The size or a value is outside of the declaration; then nothing leaves the client.
        """
        if array.size != self.size:
            raise VitrailError(f"{array.size} elements, declared are {self.size}")
        rounded = np.rint(array * np.float64(self.scale)) if array.dtype.kind == "f" else array
        low, high = (rounded.min().item(), rounded.max().item()) if rounded.size else (self.low, self.low)
        if not self.low <= low <= high <= self.low + self.span:  # before the cast, which wraps; also refuses NaN
            worst = low if low < self.low else high
            least, limit = self.low / self.scale, (self.low + self.span) / self.scale
            raise VitrailError(f"its value {worst / self.scale:.3g} is outside {least:g} to {limit:g}")
        return (rounded.reshape(-1).astype(np.int64) - np.int64(self.low)).astype(self.dtype)

    def total(self, words: Words, clients: int) -> NDArray[np.float64]:
        """Convert an unmasked sum to float64.

        Raises:
            Malformed: The sum is larger than this number of clients can have sent.
        """
        left = words & self.dtype.type((1 << self.width) - 1)
        if left.size and int(left.max()) > clients * self.span:
            raise Malformed("a sum is out of range: a client sent a false value; it cannot be identified")
        integers = left.astype(np.uint64).view(np.int64) + np.int64(clients * self.low)
        return integers / np.float64(self.scale)

    def pack(self, words: Words) -> bytes:
        """Encode with w bits per element, most significant bit first, without gaps."""
        if self.width == 8 * self.dtype.itemsize:
            return words.astype(self.dtype.newbyteorder(">")).tobytes()
        return pack_bits(words, self.width)

    def unpack(self, payload: Array) -> Words:
        """Decode the bytes of `pack`; the caller has checked their number."""
        if self.width == 8 * self.dtype.itemsize:
            return np.frombuffer(payload, self.dtype.newbyteorder(">")).astype(self.dtype)
        return join_bits(unpack_bits(payload, self.size, self.width), self.dtype)


def integer_formats(declared: Mapping[str, PartSpec], clients: int, participants: int) -> dict[str, IntegerFormat]:
    """Return the integer format of every sum part, by name in a fixed order.

    Args:
        declared: The method's `reply_spec`.
        clients: Number of clients of the run.
        participants: Number of clients of the round.

    Raises:
        VitrailError: A part is not a sum of known size, or needs more than 64 bits per element.

    Examples:
        >>> integer_formats({"mask": PartSpec("sum", "u1", 100, limit=1, least=0)}, 10, 10)["mask"].width
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
        width = max(1, (participants * (high - low)).bit_length())
        if width > 64:
            raise VitrailError(
                f"part {name!r} needs {width} bits per element, at most 64 are possible: declare a smaller limit"
            )
        parts[name] = IntegerFormat(d.size, low, high - low, scale, width)
    return parts
