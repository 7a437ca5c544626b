"""Range coding of small integers, conditional on information that both sides have.

Every position has a level that both sides know, such as the number of masks with a one there in the last round. The
sender counts the symbols at each level, sends this table, and codes the symbols with the frequencies as probabilities.
They are ratios of integers, so both sides have the same bits, and adapt to the data without a model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitrail.utils.errors import Malformed
from vitrail.wire.codecs import BY_NAME, Array, bits_for

PACKED, CODED = 0, 1  # the first byte

Integers = NDArray[np.integer]


def encode(symbols: Array, levels: Array, alphabet: int, packed: bool = False) -> NDArray[np.uint8]:
    """Encode symbols.

    Args:
        symbols: Integers from 0 to alphabet - 1.
        levels: The level of each symbol.
        alphabet: Number of different symbols.
        packed: Whether to pack bits instead; done anyway if it is shorter.

    Examples:
        >>> symbols, levels = np.array([0, 0, 1, 1] * 500), np.array([0, 0, 1, 1] * 500)
        >>> len(encode(symbols, levels, 2)), len(encode(symbols, np.zeros(2000, int), 2))
        (4, 251)
        >>> bool((decode(encode(symbols, levels, 2), levels, 2) == symbols).all())
        True
    """
    import constriction

    plain = bytes([PACKED]) + BY_NAME[bits_for(alphabet - 1)].encode(symbols)
    if packed:
        return np.frombuffer(plain, np.uint8)
    order, sizes = _by_level(levels)
    sorted_ = symbols[order].astype(np.int32)
    coder, table, at = constriction.stream.queue.RangeEncoder(), bytearray(), 0
    for size in filter(None, sizes):
        some = sorted_[at : at + size]
        counts = np.bincount(some, minlength=alphabet)
        for n in counts[:-1].tolist():  # the last follows from the size
            table += _number(n)
        if len(some) > counts.max():  # otherwise all symbols are equal and need no code
            coder.encode(some, _model(counts))
        at += size
    words = coder.get_compressed().astype("<u4").tobytes()
    coded = bytes([CODED]) + bytes(table) + words
    return np.frombuffer(coded if len(coded) <= len(plain) else plain, np.uint8)


def decode(payload: Array, levels: Array, alphabet: int) -> Array:
    """Decode symbols.

    Args:
        payload: The output of `encode`.
        levels: The level of each symbol, as for the encoder.
        alphabet: Number of different symbols.

    Raises:
        Malformed: If the payload is not an output of `encode` for these levels.
    """
    raw = payload.tobytes()
    if not raw or raw[0] not in (PACKED, CODED):
        raise Malformed("coded symbols must start with the byte 0 or 1")
    if raw[0] == PACKED:
        symbols = BY_NAME[bits_for(alphabet - 1)].decode(raw[1:], levels.shape)
        if symbols.size and symbols.max() >= alphabet:
            raise Malformed(f"symbol {symbols.max()} is not in an alphabet of {alphabet}")
        return symbols
    symbols = _decode(raw, levels, alphabet)
    if encode(symbols, levels, alphabet).tobytes() != raw:  # truncated, extended, or changed without effect
        raise Malformed("coded symbols are not an output of the encoder")
    return symbols


def encode_values(values: Array, packed: bool = False) -> NDArray[np.uint8]:
    """Encode integers of 16 bits with few different values: first the values, then the index of each.

    Args:
        values: The integers.
        packed: Whether to pack the bits of the indices instead of coding them.

    Examples:
        >>> some = np.array([-300, 7, 7, -300, 7] * 200, np.int16)
        >>> len(encode_values(some)), bool((decode_values(encode_values(some), 1000) == some).all())
        (132, True)
    """
    found, which = np.unique(values.astype(np.int16), return_inverse=True)
    head = np.concatenate([np.array([len(found) & 255, len(found) >> 8], np.uint8), found.astype("<i2").view(np.uint8)])
    return np.concatenate([head, encode(which, np.zeros(len(values), np.uint8), len(found), packed)])


def decode_values(payload: Array, n: int) -> NDArray[np.int16]:
    """Decode n integers; raise Malformed if the payload is not an output of `encode_values`."""
    found = int(payload[0]) | int(payload[1]) << 8 if len(payload) >= 2 else 0
    if not 0 < found <= n or len(payload) < 2 + 2 * found:
        raise Malformed(f"{len(payload)} bytes are not {n} coded numbers")
    values = np.frombuffer(payload.tobytes(), "<i2", found, 2)
    if (np.diff(values.astype(np.int32)) <= 0).any():
        raise Malformed("the different values are not sorted")
    which = decode(payload[2 + 2 * found :], np.zeros(n, np.uint8), found)
    return values[which].astype(np.int16)


def _decode(raw: bytes, levels: Array, alphabet: int) -> Array:
    import constriction

    order, sizes = _by_level(levels)
    tables, at = [], 1
    for size in filter(None, sizes):
        counts = np.zeros(alphabet, np.int64)
        for symbol in range(alphabet - 1):
            counts[symbol], at = _read(raw, at)
        counts[-1] = size - counts.sum()
        if counts[-1] < 0:
            raise Malformed("the counts of a symbol table exceed the number of symbols")
        tables.append(counts)
    if (len(raw) - at) % 4:
        raise Malformed("coded symbols end within a word")
    coder = constriction.stream.queue.RangeDecoder(np.frombuffer(raw, "<u4", offset=at).astype(np.uint32))
    symbols = np.empty(levels.size, np.uint8 if alphabet <= 256 else np.int32)
    done = 0
    for counts in tables:
        size = int(counts.sum())
        here, done = order[done : done + size], done + size
        if size == counts.max():
            symbols[here] = counts.argmax()
            continue
        try:
            symbols[here] = coder.decode(_model(counts), size)
        except AssertionError as e:  # how the library reports invalid data
            raise Malformed("coded symbols do not fit their table") from e
    return symbols


def _by_level(levels: Array) -> tuple[Integers, list[int]]:
    """Return positions sorted by level, and the number of positions of each level."""
    narrow = levels.astype(np.uint16)
    return np.argsort(narrow, kind="stable"), np.bincount(narrow).tolist()


def _model(counts: Integers) -> object:
    import constriction

    return constriction.stream.model.Categorical(counts / counts.sum(), perfect=False)


def _number(n: int) -> bytes:
    """Encode an integer, seven bits per byte, lowest first."""
    out = bytearray()
    while n >= 128:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def _read(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(raw) or shift > 28:
            raise Malformed("a symbol table is truncated")
        byte = raw[at]
        value, at = value | (byte & 127) << shift, at + 1
        if byte < 128:
            return value, at
        shift += 7
