"""Messages as bytes: a header and named parts.

The checksum detects accidents, not attacks; senders are authenticated by signatures (engines/signing/) or the channel.
`base` is a digest of the state that a message depends on (zeros: none). A part with a `peer` is for or from another
client: the server forwards its payload unread.
"""

# 'VTRL' | version u8 | kind u8 | run 16 | base 16 | round u32 | exchange u16 | sender | count u16 | parts | crc32
# part: name | peer | codec u8 | ndim u8 | dims u32... | length u64 | payload        (texts: length u8, then UTF-8)

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

from vitrail.utils.errors import Malformed, VitrailError
from vitrail.wire.codecs import BY_NAME, CODECS, Array, Shape

MAGIC, VERSION = b"VTRL", 1
LARGEST = 2**31 - 1  # maximum bytes of one message, the smallest limit of the transports
_HEAD = struct.Struct("<4sBB16s16sIH")
_NUMBER = {codec.name: i for i, codec in enumerate(CODECS)}
NO_BASE = bytes(16)
LONGEST_REASON = 500  # maximum bytes of the reason of a failure


class Kind(IntEnum):
    """Kind of a message."""

    REQUEST = 1
    REPLY = 2
    NEED_FULL = 3  # the client does not have the base state: send the request again in full
    FAILED = 4  # the client could not reply; has a reason


@dataclass(frozen=True)
class Header:
    """Header of a message; a reply must match its request in run, round and exchange.

    Args:
        kind: Kind of the message.
        run: Id of the run, 16 bytes.
        round: Number of the round.
        sender: Name of the sender.
        exchange: Number of the exchange within the round.
        base: Digest of the state that the message depends on, 16 bytes; zeros: none.
    """

    kind: Kind
    run: bytes
    round: int
    sender: str
    exchange: int = 0
    base: bytes = NO_BASE


@dataclass(frozen=True)
class Part:
    """A named array in encoded form.

    Args:
        name: Name of the part.
        codec: Name of the codec.
        shape: Shape of the array.
        payload: The encoded array.
        peer: Name of the client that the part is for or from; empty: the server.
    """

    name: str
    codec: str
    shape: Shape
    payload: bytes
    peer: str = ""

    def array(self) -> Array:
        """Decode the array; raise Malformed with the name of the part if it is invalid."""
        try:
            return BY_NAME[self.codec].decode(self.payload, self.shape)
        except (Malformed, ValueError) as e:
            raise Malformed(f"part {self.name!r}: {e}") from None


def make_part(name: str, codec: str, array: Array, peer: str = "") -> Part:
    """Encode an array as a part of a message.

    Args:
        name: Name of the part.
        codec: Name of a codec in `vitrail.wire.codecs`.
        array: The array.
        peer: Name of the client that the part is for or from; empty: the server.

    Raises:
        VitrailError: If values do not fit the codec.

    Examples:
        >>> import numpy as np
        >>> make_part("mask", "u1", np.array([1, 0, 1], bool)).payload
        b'\\xa0'
    """
    return Part(name, codec, array.shape, BY_NAME[codec].encode(array), peer)


@dataclass(frozen=True)
class Message:
    """A message: a header and parts."""

    header: Header
    parts: tuple[Part, ...] = ()


def _text(s: str) -> bytes:
    raw = s.encode()
    if len(raw) > 255:
        raise VitrailError(f"the name {s[:40]!r}... has {len(raw)} bytes; at most 255 can be sent")
    return bytes([len(raw)]) + raw


def encode(message: Message) -> bytes:
    """Encode a message; raise VitrailError if it is too large."""
    h = message.header
    out = [_HEAD.pack(MAGIC, VERSION, h.kind, h.run, h.base, h.round, h.exchange), _text(h.sender)]
    out.append(struct.pack("<H", len(message.parts)))
    for p in message.parts:
        out += [_text(p.name), _text(p.peer)]
        out.append(struct.pack(f"<BB{len(p.shape)}IQ", _NUMBER[p.codec], len(p.shape), *p.shape, len(p.payload)))
        out.append(p.payload)
    size = sum(map(len, out)) + 4
    if size > LARGEST:
        raise VitrailError(f"a message of {size:,} bytes; at most {LARGEST:,} can be sent: use a smaller network")
    crc = 0
    for piece in out:
        crc = zlib.crc32(piece, crc)
    return b"".join([*out, struct.pack("<I", crc)])


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, n: int) -> bytes:
        if n > len(self.data) - self.at:
            raise Malformed(f"message ends after {len(self.data)} bytes, expected {n} more at byte {self.at}")
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
    """Decode a message; the arrays of its parts stay encoded.

    Args:
        data: The bytes of the message.

    Raises:
        Malformed: If the bytes are not an output of `encode`.

    Examples:
        >>> message = Message(Header(Kind.REQUEST, bytes(16), 3, "server"))
        >>> decode(encode(message)) == message
        True
    """
    if len(data) > LARGEST:
        raise Malformed(f"message of {len(data):,} bytes; at most {LARGEST:,} are read")
    if len(data) < 4 or zlib.crc32(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
        raise Malformed("the checksum does not match: the message was truncated or changed in transit")
    r = _Reader(data[:-4])
    magic, version, kind, run, base, round_, exchange = _HEAD.unpack(r.take(_HEAD.size))
    if magic != MAGIC:
        raise Malformed("not a vitrail message")
    if version != VERSION:
        raise Malformed(
            f"message version {version}; this program uses {VERSION}: install the same version on both sides"
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
        raise Malformed(f"part {name!r} has an unknown codec {number}")
    shape = r.unpack(f"{ndim}I")
    if ndim > 8 or math.prod(max(n, 1) for n in shape) > 8 * LARGEST:
        raise Malformed(f"part {name!r} has an invalid shape {shape}")
    return Part(name, CODECS[number].name, shape, r.take(r.unpack("Q")[0]), peer)


def round_of(message: bytes) -> int:
    """Return the round of a message from this program, without decoding the rest."""
    return int(_HEAD.unpack_from(message)[5])


def digest(*pieces: bytes | str) -> bytes:
    """Return a hash of 16 bytes of a sequence of bytes or text."""
    h = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        raw = piece.encode() if isinstance(piece, str) else piece
        h.update(len(raw).to_bytes(8, "little") + raw)
    return h.digest()
