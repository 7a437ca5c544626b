"""Bytes and a text in a Flower message."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from vitrail.utils.errors import Malformed

TRAIN, DESCRIBE, KEEP = "train", "query.describe", "query.keep"  # what a message is for
_BYTES, _TEXT, _ONE = "bytes", "text", "vitrail"
LONGEST_TEXT = 2**20


def packed(text: str, data: bytes = b"") -> RecordDict:
    """What a message holds; bytes travel as an array, which Flower takes without copying them about."""
    array = Array(dtype="uint8", shape=(len(data),), stype="raw", data=data)
    return RecordDict({_BYTES: ArrayRecord({_ONE: array}), _TEXT: ConfigRecord({_ONE: text})})


def unpacked(message: Message, most: int) -> tuple[str, bytes]:
    """What a message holds, if it is what we send and no longer than `most` bytes."""
    content = message.content
    bytes_, text = content.array_records.get(_BYTES), content.config_records.get(_TEXT)
    if bytes_ is None or text is None or set(bytes_) != {_ONE} or set(text) != {_ONE}:
        raise Malformed("the message does not hold one array of bytes and one text")
    array, words = bytes_[_ONE], text[_ONE]
    if not isinstance(words, str) or len(words) > LONGEST_TEXT or (array.dtype, array.stype) != ("uint8", "raw"):
        raise Malformed("the message does not hold one array of bytes and one text")
    data = array.data
    if len(data) > most:
        raise Malformed(f"a message of {len(data):,} bytes; at most {most:,} are taken")
    return words, data
