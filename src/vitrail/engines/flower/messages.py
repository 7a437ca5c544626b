"""Bytes and a text in a Flower message."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from vitrail.utils.errors import Malformed

_BYTES, _TEXT, _NAME = "bytes", "text", "vitrail"
MAX_TEXT = 2**20


def pack(text: str, data: bytes = b"") -> RecordDict:
    """Return the content of a message; bytes are an array, which Flower does not copy."""
    array = Array(dtype="uint8", shape=(len(data),), stype="raw", data=data)
    return RecordDict({_BYTES: ArrayRecord({_NAME: array}), _TEXT: ConfigRecord({_NAME: text})})


def unpack(message: Message, max_bytes: int) -> tuple[str, bytes]:
    """Return text and bytes of a message.

    Raises:
        Malformed: The message was not made by `pack`, or has more than `max_bytes` bytes.
    """
    content = message.content
    bytes_, text = content.array_records.get(_BYTES), content.config_records.get(_TEXT)
    if bytes_ is None or text is None or set(bytes_) != {_NAME} or set(text) != {_NAME}:
        raise Malformed("the message does not have one array of bytes and one text")
    array, words = bytes_[_NAME], text[_NAME]
    if not isinstance(words, str) or len(words) > MAX_TEXT or (array.dtype, array.stype) != ("uint8", "raw"):
        raise Malformed("the message does not have one array of bytes and one text")
    data = array.data
    if len(data) > max_bytes:
        raise Malformed(f"a message of {len(data):,} bytes; at most {max_bytes:,} are accepted")
    return words, data
