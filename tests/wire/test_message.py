"""Messages and codecs: exact decoding, and refusal of invalid bytes."""

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vitrail.utils.errors import Malformed, VitrailError
from vitrail.wire.codecs import BY_NAME, CODECS, bits_for
from vitrail.wire.message import Header, Kind, Message, Part, decode, encode, make_part

RUN = bytes(range(16))
HEADER = Header(Kind.REPLY, RUN, 3, "client-1", 2, b"b" * 16)


def arrays_for(codec):
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=7)
    if codec.startswith("float"):
        width = int(codec[5:])
        return hnp.arrays(f"<f{width // 8}", shapes, elements={"allow_nan": False, "allow_infinity": False})
    dtype = {"bytes": "u1", "int32": "<i4", "int64": "<i8", "seed": "<u8"}.get(codec)
    if dtype:
        return hnp.arrays(dtype, shapes)
    return hnp.arrays("<u4", shapes, elements=st.integers(0, 2 ** int(codec[1:]) - 1))


@pytest.mark.parametrize("codec", [c.name for c in CODECS])
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_a_codec_decodes_its_output_bit_by_bit(codec, data):
    a = data.draw(arrays_for(codec))
    payload = BY_NAME[codec].encode(a)
    back = BY_NAME[codec].decode(payload, a.shape)
    assert back.shape == a.shape
    assert np.array_equal(back, a)
    assert BY_NAME[codec].encode(back) == payload


@pytest.mark.parametrize(
    ("codec", "bits"), [("float32", 32), ("float16", 16), ("u1", 1), ("u4", 4), ("u11", 11), ("seed", 64)]
)
def test_a_codec_uses_its_number_of_bits(codec, bits):
    assert len(BY_NAME[codec].encode(np.zeros(1001, np.uint8))) == -(-1001 * bits // 8)


def test_packed_integers_match_a_plain_computation():
    values = [5, 0, 9, 10, 3]
    text = "".join(f"{v:04b}" for v in values)
    expected = int(text.ljust(24, "0"), 2).to_bytes(3, "big")
    assert BY_NAME["u4"].encode(np.array(values)) == expected


@pytest.mark.parametrize("largest", [1, 2, 10, 255, 65535, 65536])
def test_the_narrowest_codec_for_a_count_represents_it(largest):
    a = np.array([0, largest], np.int64)
    assert np.array_equal(BY_NAME[bits_for(largest)].decode(BY_NAME[bits_for(largest)].encode(a), (2,)), a)


@pytest.mark.parametrize(("codec", "value"), [("u1", 2), ("u4", 16), ("u4", -1), ("int32", 2**40), ("bytes", 300)])
def test_a_value_that_does_not_fit_is_refused_by_the_sender(codec, value):
    with pytest.raises(VitrailError, match="wider codec"):
        make_part("x", codec, np.array([value], np.int64))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("codec", ["float32", "float16"])
def test_nan_and_infinity_are_refused_by_sender_and_receiver(codec, value):
    with pytest.raises(VitrailError, match="1 of 2 numbers"):
        make_part("update", codec, np.array([1.0, value]))
    part = Part("update", codec, (2,), np.array([1.0, value], codec).tobytes())
    with pytest.raises(Malformed, match=r"'update'.*1 of 2 numbers"):
        part.array()


names = st.text(max_size=20)
parts = st.sampled_from([c.name for c in CODECS]).flatmap(
    lambda c: st.builds(make_part, names, st.just(c), arrays_for(c), st.sampled_from(["", "client-2"]))
)
headers = st.builds(
    Header, st.sampled_from(Kind), st.binary(min_size=16, max_size=16), st.integers(0, 2**32 - 1), names,
    st.integers(0, 2**16 - 1), st.binary(min_size=16, max_size=16),
)  # fmt: skip


@given(headers, st.lists(parts, max_size=4, unique_by=lambda p: (p.name, p.peer)))
@settings(max_examples=100, deadline=None)
def test_a_message_is_decoded_exactly(header, listed):
    message = Message(header, tuple(listed))
    assert decode(encode(message)) == message


def sealed(body):
    """Append a correct checksum, so that the checks after it are tested."""
    return body + struct.pack("<I", zlib.crc32(body))


def read_all(data):
    """Decode a message and its arrays; return None if it is refused."""
    try:
        message = decode(data)
        arrays = [p.array() for p in message.parts]
    except Malformed:
        return None
    return message, arrays


@given(st.binary(max_size=300), st.booleans())
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_refused_without_a_crash(data, seal):
    read = read_all(sealed(data) if seal else data)
    if read is not None:
        message, arrays = read
        assert encode(message) == (sealed(data) if seal else data)
        assert all(np.isfinite(a).all() for a in arrays if a.dtype.kind == "f")


VALID = encode(
    Message(
        HEADER,
        (
            make_part("mask", "u1", np.ones(77)),
            make_part("loss", "float32", np.ones((2, 3))),
            make_part("s", "bytes", np.zeros(5), "p"),
        ),
    )
)


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_a_changed_message_is_refused_or_is_a_valid_encoding(data):
    body = bytearray(VALID[:-4])
    for _ in range(data.draw(st.integers(1, 4))):
        kind, at = (
            data.draw(st.sampled_from(["flip", "cut", "grow"])),
            data.draw(st.integers(0, len(body) - 1)),
        )
        if kind == "flip":
            body[at] ^= data.draw(st.integers(1, 255))
        elif kind == "cut" and len(body) > 1:
            del body[at : at + data.draw(st.integers(1, 20))]
            body = body or bytearray(b"\0")
        else:
            body[at:at] = data.draw(st.binary(min_size=1, max_size=20))
    assert decode(VALID)
    changed = sealed(bytes(body))
    read = read_all(changed)
    if read is not None:
        assert encode(read[0]) == changed


@given(st.integers(0, len(VALID) - 1), st.integers(1, 255))
@settings(max_examples=200, deadline=None)
def test_a_single_changed_byte_is_always_detected(at, flip):
    data = bytearray(VALID)
    data[at] ^= flip
    with pytest.raises(Malformed, match="checksum"):
        decode(bytes(data))


@pytest.mark.parametrize("cut", [1, 4, 30, len(VALID) // 2, len(VALID) - 1])
def test_a_truncated_message_is_refused(cut):
    with pytest.raises(Malformed):
        decode(VALID[:-cut])


def test_a_huge_shape_in_a_header_needs_no_memory():
    part = Part("x", "float32", (2**31, 2**31), b"")
    with pytest.raises(Malformed, match="shape"):
        decode(encode(Message(HEADER, (part,))))


def test_an_impossible_shape_is_refused():
    part = Part("x", "bytes", (0, 2**32 - 1, 2**32 - 1, 2**32 - 1), b"")
    with pytest.raises(Malformed):
        decode(encode(Message(HEADER, (part,)))).parts[0].array()


def test_two_parts_of_the_same_name_are_refused():
    part = make_part("x", "float32", np.zeros(1))
    with pytest.raises(Malformed, match="same name"):
        decode(encode(Message(HEADER, (part, part))))


def test_another_version_has_a_specific_error():
    body = bytearray(VALID[:-4])
    body[4] = 9
    with pytest.raises(Malformed, match="version 9"):
        decode(sealed(bytes(body)))
