"""Exchanges of secure aggregation and the parts of their messages.

0 advertise   client -> server: public keys for letters and masks, a commitment to the seed of its own mask, signed
1 share       client -> other clients: shares of that seed and of its mask key, one encrypted letter each
2 mask        client -> server: the method's own round; its sum parts as integers under all masks
3 confirm     client -> server: a signature over the clients, their keys, and whose masked replies arrived
4 open        client -> server: for each client one share: of the seed if its reply arrived, else of its mask key
"""

from __future__ import annotations

import json

import numpy as np

from vitrail.utils.errors import Malformed
from vitrail.wire.codecs import Array
from vitrail.wire.message import Message, Part, make_part

ADVERTISE, SHARES, MASK, CONFIRM, OPEN = range(5)
PREFIX = "secagg."  # of the names of all parts below; one array each, in the order of the clients' names
KEYS, WHO, FROM, LETTERS, ALIVE, SIGNATURES, OPENED = (
    PREFIX + name for name in ("keys", "who", "from", "letters", "alive", "signatures", "opened")
)


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
            bits: list[int] = p.array().tolist()
            return bits
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
