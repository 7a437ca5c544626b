"""Messages: a header and named parts, as bytes.

    'VTRL' | version u8 | kind u8 | run 16 | base 16 | round u32 | exchange u16 | sender | count u16 | parts | crc32
    part: name | peer | codec u8 | ndim u8 | dims u32... | length u64 | payload        (texts: length u8, then UTF-8)

The checksum finds accidents, not attackers: who sent a message is proven by its signature (engines/signing/), or by
the channel. `base` names the state a message builds on (zeros: none needed). A part whose `peer` is not empty is for,
or from, another client: the server passes its payload on without opening it.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from vitrail.utils.errors import Malformed, VitrailError
from vitrail.wire.codecs import BY_NAME, CODECS, Array, Shape

MAGIC, VERSION = b"VTRL", 1
LARGEST = 2**31 - 1  # bytes of one message; what the narrowest transport takes
_HEAD = struct.Struct("<4sBB16s16sIH")
_NUMBER = {codec.name: i for i, codec in enumerate(CODECS)}
NO_BASE = bytes(16)
LONGEST_REASON = 500  # bytes of a failure's reason


class Kind(IntEnum):
    """What a message is."""

    REQUEST = 1
    REPLY = 2
    NEED_FULL = 3  # "I do not hold the state this builds on": ask again, in full
    FAILED = 4  # "I could not do it", with a reason


@dataclass(frozen=True)
class Header:
    """Where a message belongs; a reply must match its request in run, round and exchange."""

    kind: Kind
    run: bytes
    round: int
    sender: str
    exchange: int = 0
    base: bytes = NO_BASE


@dataclass(frozen=True)
class Part:
    """One named array, still encoded."""

    name: str
    codec: str
    shape: Shape
    payload: bytes
    peer: str = ""

    def array(self) -> Array:
        """Decode, or refuse with the part's name."""
        try:
            return BY_NAME[self.codec].decode(self.payload, self.shape)
        except (Malformed, ValueError) as e:
            raise Malformed(f"part {self.name!r}: {e}") from None


def make_part(name: str, codec: str, array: Array, peer: str = "") -> Part:
    """Encode an array.

    >>> import numpy as np
    >>> make_part("mask", "u1", np.array([1, 0, 1], bool)).payload
    b'\\xa0'
    """
    return Part(name, codec, array.shape, BY_NAME[codec].encode(array), peer)


@dataclass(frozen=True)
class Message:
    """A header and its parts."""

    header: Header
    parts: tuple[Part, ...] = field(default=())


def _text(s: str) -> bytes:
    raw = s.encode()
    if len(raw) > 255:
        raise VitrailError(f"the name {s[:40]!r}... has {len(raw)} bytes; at most 255 travel")
    return bytes([len(raw)]) + raw


def encode(message: Message) -> bytes:
    """The bytes of a message; their number is what it costs to send it."""
    h = message.header
    out = [_HEAD.pack(MAGIC, VERSION, h.kind, h.run, h.base, h.round, h.exchange), _text(h.sender)]
    out.append(struct.pack("<H", len(message.parts)))
    for p in message.parts:
        out += [_text(p.name), _text(p.peer)]
        out.append(struct.pack(f"<BB{len(p.shape)}IQ", _NUMBER[p.codec], len(p.shape), *p.shape, len(p.payload)))
        out.append(p.payload)
    size = sum(map(len, out)) + 4
    if size > LARGEST:
        raise VitrailError(f"a message of {size:,} bytes; at most {LARGEST:,} travel: use a smaller network")
    crc = 0
    for piece in out:
        crc = zlib.crc32(piece, crc)
    return b"".join([*out, struct.pack("<I", crc)])


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, n: int) -> bytes:
        if n > len(self.data) - self.at:
            raise Malformed(f"ends after {len(self.data)} bytes, {n} more were announced at byte {self.at}")
        self.at += n
        return self.data[self.at - n : self.at]

    def unpack(self, form: str) -> tuple[int, ...]:
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))

    def text(self) -> str:
        try:
            return self.take(self.unpack("B")[0]).decode()
        except UnicodeDecodeError:
            raise Malformed("a name is not UTF-8") from None


def decode(data: bytes) -> Message:
    """Read a message back; anything that `encode` could not have written is refused."""
    if len(data) > LARGEST:
        raise Malformed(f"{len(data):,} bytes; at most {LARGEST:,} are read")
    if len(data) < 4 or zlib.crc32(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
        raise Malformed("the checksum does not match: the message was cut short or changed on its way")
    r = _Reader(data[:-4])
    magic, version, kind, run, base, round_, exchange = _HEAD.unpack(r.take(_HEAD.size))
    if magic != MAGIC:
        raise Malformed("not a vitrail message")
    if version != VERSION:
        raise Malformed(
            f"message version {version}; this program speaks {VERSION}: install the same version on both sides"
        )
    if kind not in set(Kind):
        raise Malformed(f"unknown kind of message {kind}")
    header = Header(Kind(kind), run, round_, r.text(), exchange, base)
    parts = tuple(_read_part(r) for _ in range(r.unpack("H")[0]))
    if r.at != len(r.data):
        raise Malformed(f"{len(r.data) - r.at} bytes follow the last part")
    if len({(p.name, p.peer) for p in parts}) != len(parts):
        raise Malformed("two parts have the same name")
    return Message(header, parts)


def _read_part(r: _Reader) -> Part:
    name, peer = r.text(), r.text()
    number, ndim = r.unpack("BB")
    if number >= len(CODECS):
        raise Malformed(f"part {name!r} names an unknown codec {number}")
    shape = r.unpack(f"{ndim}I")
    if ndim > 8 or math.prod(max(n, 1) for n in shape) > 8 * LARGEST:
        raise Malformed(f"part {name!r} announces the shape {shape}")
    return Part(name, CODECS[number].name, shape, r.take(r.unpack("Q")[0]), peer)


def round_of(message: bytes) -> int:
    """The round that a message of our own making belongs to, without reading the rest."""
    return int(_HEAD.unpack_from(message)[5])


def digest(*pieces: bytes | str) -> bytes:
    """Sixteen bytes that name these pieces."""
    h = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        raw = piece.encode() if isinstance(piece, str) else piece
        h.update(len(raw).to_bytes(8, "little") + raw)
    return h.digest()


def arrays(parts: Iterable[Part]) -> dict[str, Array]:
    """All parts by name, decoded."""
    return {p.name: p.array() for p in parts}
