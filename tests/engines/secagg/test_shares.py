"""The arithmetic of secure aggregation: sharing, masks, and integers modulo 2^w."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.engines.replies import CheckedPart
from vitrail.engines.secagg import shares as secagg
from vitrail.engines.secagg.messages import IntegerFormat, integer_formats
from vitrail.engines.secagg.shares import PRIME, join, split
from vitrail.engines.sums import FixedPointSum
from vitrail.methods.base import PartSpec
from vitrail.privacy.noise import operating_system, seeded
from vitrail.utils import crypto
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.rng import Rng
from vitrail.wire.message import make_part

SOURCE = seeded(Rng((3,)))


# -- sharing ------------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 8), st.integers(0, 4), st.randoms())
def test_any_threshold_of_shares_rebuilds_the_secret(secret, need, more, random):
    points = random.sample(range(1, 50), need + more)
    shares = dict(zip(points, split(SOURCE, secret, need, points), strict=True))
    assert join({x: shares[x] for x in random.sample(points, need)}) == secret


def test_the_modulus_is_prime_and_extreme_secrets_are_rebuilt():
    assert all(pow(a, PRIME - 1, PRIME) == 1 for a in (2, 3, 5, 7, 11, 13))
    for secret in (bytes(32), b"\xff" * 32):
        assert join(dict(zip((1, 2), split(SOURCE, secret, 2, (1, 2)), strict=True))) == secret


def test_shares_are_values_of_a_polynomial_of_the_right_degree():
    """An independent interpolation in exact fractions: the fourth share follows from three, not from two."""
    shares = [int.from_bytes(s, "little") for s in split(SOURCE, bytes(range(32)), 3, (1, 2, 3, 4))]

    def at(x, points):
        value = Fraction(0)
        for i in points:
            weight = Fraction(1)
            for j in points:
                weight *= Fraction(x - j, i - j) if i != j else 1
            value += shares[i - 1] * weight
        return value.numerator * pow(value.denominator, -1, PRIME) % PRIME

    assert at(4, (1, 2, 3)) == shares[3]
    assert at(4, (2, 3)) != shares[3]


def test_fewer_shares_are_consistent_with_every_secret():
    """Given one share of two, for each other secret a second share exists that gives it."""
    one = split(SOURCE, b"\x07" * 32, 2, (1, 2))[0]
    for other in (bytes(32), b"\x09" * 32, b"\xff" * 32):
        y, s = int.from_bytes(one, "little"), int.from_bytes(other, "little")
        second = (s + 2 * (y - s)) % PRIME
        assert join({1: one, 2: second.to_bytes(33, "little")}) == other


@pytest.mark.parametrize("bad", [b"", bytes(32), bytes(34), b"\xff" * 33])
def test_bytes_that_are_not_a_share_are_refused(bad):
    good = split(SOURCE, bytes(32), 2, (1, 2))
    with pytest.raises(Malformed, match="not a share"):
        join({1: good[0], 2: bad})


# -- keys ---------------------------------------------------------------------------------------------------------------


def test_both_parties_derive_the_same_key_and_purposes_differ():
    a, b = SOURCE(32), SOURCE(32)
    keys = [crypto.agree(a, crypto.public(b), b"p"), crypto.agree(b, crypto.public(a), b"p")]
    assert keys[0] == keys[1]
    assert keys[0] != crypto.agree(a, crypto.public(b), b"q")


def test_key_agreement_matches_x25519_with_hkdf_of_another_library():
    dh, kdf = pytest.importorskip("Crypto.Protocol.DH"), pytest.importorskip("Crypto.Protocol.KDF")
    from Crypto.Hash import SHA256

    a, b = SOURCE(32), SOURCE(32)
    ours, theirs = dh.import_x25519_private_key(a), dh.import_x25519_public_key(crypto.public(b))

    def derive(secret):
        return kdf.HKDF(secret, 32, b"", SHA256, context=b"p")

    assert crypto.agree(a, crypto.public(b), b"p") == dh.key_agreement(static_priv=ours, static_pub=theirs, kdf=derive)


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(32), (1).to_bytes(32, "little")])
def test_public_keys_with_a_known_shared_secret_are_refused(key):
    with pytest.raises(Malformed, match="not a public key"):
        crypto.agree(SOURCE(32), key, b"p")


def test_a_changed_or_misdirected_ciphertext_is_refused():
    key = SOURCE(32)
    box = crypto.seal(key, b"two shares")
    assert crypto.unseal(key, box) == b"two shares"
    for other in (box[:-1], bytes([box[0] ^ 1]) + box[1:], b"", bytes(40)):
        with pytest.raises(Malformed, match="cannot be decrypted"):
            crypto.unseal(key, other)
    with pytest.raises(Malformed, match="cannot be decrypted"):
        crypto.unseal(SOURCE(32), box)


def test_the_key_stream_matches_chacha20_of_another_library():
    ChaCha20 = pytest.importorskip("Crypto.Cipher.ChaCha20")
    key = bytes(range(32))
    expected = ChaCha20.new(key=key, nonce=bytes(12)).encrypt(bytes(1000))
    stream = crypto.key_stream(key)
    assert stream.update(bytes(300)) + stream.update(bytes(700)) == expected


# -- integers modulo 2^w ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", range(1, 65))
def test_every_width_packs_without_gaps_and_unpacks_to_the_same(width):
    kind = IntegerFormat(13, 0, 1, 1.0, width)
    words = np.frombuffer(SOURCE(13 * 8), "<u8") & np.uint64((1 << width) - 1)
    packed = kind.pack(words.astype(kind.dtype))
    assert len(packed) == kind.wire_bytes == -(-13 * width // 8)
    assert np.array_equal(kind.unpack(np.frombuffer(packed, np.uint8)), words)
    plain = "".join(format(int(w), f"0{width}b") for w in words).ljust(8 * len(packed), "0")
    assert packed == int(plain, 2).to_bytes(len(packed), "big")


def test_bits_set_beyond_the_last_element_are_refused():
    with pytest.raises(Malformed, match="beyond the last"):
        IntegerFormat(3, 0, 1, 1.0, 3).unpack(np.array([0, 1], np.uint8))


@pytest.mark.parametrize(("clients", "width"), [(2, 2), (3, 2), (4, 3), (10, 4), (15, 4), (16, 5), (100, 7)])
def test_bits_of_k_clients_take_bit_length_of_k_bits(clients, width):
    assert integer_formats({"m": PartSpec("sum", "u1", 8, limit=1, least=0)}, clients, clients)["m"].width == width


KINDS = {
    "f": PartSpec("sum", "float32", 6, limit=1000.0),
    "h": PartSpec("sum", "float16", 6, limit=32.0),
    "p": PartSpec("sum", "float32", 6, limit=2.0**40, least=0.0),
    "i": PartSpec("sum", "int32", 6, limit=2**31 - 1),
    "u": PartSpec("sum", "u5", 6, limit=31, least=0),
    "b": PartSpec("sum", "u1", 6, limit=1, least=0),
}


@pytest.mark.parametrize("clients", [2, 3, 8, 10])
def test_masked_sums_equal_plain_sums_to_the_bit_also_at_the_limits(clients):
    draw = np.random.default_rng(clients)
    kinds, total = integer_formats(KINDS, clients, clients), FixedPointSum(KINDS, clients)
    summed = {name: np.zeros(kind.size, kind.dtype) for name, kind in kinds.items()}
    for k in range(clients):
        for name, d in KINDS.items():
            low = max(d.least, -d.limit)
            values = np.concatenate([[low if k % 2 else d.limit, d.limit, low], draw.uniform(low, d.limit, 3)])
            values = values if d.codec.startswith("float") else np.floor(values)
            part = make_part(name, d.codec, values.astype(np.float64 if d.codec.startswith("float") else np.int64))
            total.add([CheckedPart(part, part.array())])
            summed[name] += kinds[name].words(part.array())
    plain = total.sums(clients).values
    for name, kind in kinds.items():
        assert kind.total(summed[name], clients).tobytes() == plain[name].tobytes(), name


@pytest.mark.parametrize("value", [1001.0, -1001.0])
def test_values_out_of_range_do_not_leave_the_client(value):
    kind = integer_formats(KINDS, 3, 3)["f"]
    with pytest.raises(VitrailError, match="outside -1000 to 1000"):
        kind.words(np.float32([0, 0, 0, 0, 0, value]))
    with pytest.raises(VitrailError, match="2 elements"):
        kind.words(np.float32([0, value]))


def test_a_sum_that_clients_cannot_have_sent_is_refused():
    kind = integer_formats(KINDS, 4, 4)["b"]
    with pytest.raises(Malformed, match="a sum is out of range"):
        kind.total(np.array([0, 1, 2, 3, 4, 5], np.uint8), 4)
    assert kind.total(np.array([0, 1, 2, 3, 4, 4], np.uint8), 4).tolist() == [0, 1, 2, 3, 4, 4]


def test_a_part_that_is_not_a_sum_of_known_size_is_refused():
    for d in (
        PartSpec("each", "u1", 1),
        PartSpec("relay", "bytes", 1),
        PartSpec("sum", "u1", None),
        PartSpec("sum", "bytes", 1, unpack=lambda s, a: a),
    ):
        with pytest.raises(VitrailError, match="not a plain sum"):
            integer_formats({"x": d}, 3, 3)
    with pytest.raises(VitrailError, match="declare a smaller limit"):
        integer_formats({"x": PartSpec("sum", "int64", 1, limit=2**63 - 1)}, 3, 3)


# -- masks ----------------------------------------------------------------------------------------------------------


def test_a_mask_can_be_removed_and_pairwise_masks_cancel():
    key = SOURCE(32)
    vector = {"a": np.arange(5, dtype=np.uint8), "b": np.arange(3, dtype="<u8")}
    before = {k: v.copy() for k, v in vector.items()}
    secagg.add_mask(vector, key, +1)
    assert not any(np.array_equal(vector[k], before[k]) for k in vector)
    secagg.add_mask(vector, key, -1)
    assert all(np.array_equal(vector[k], before[k]) for k in vector)
    assert all(secagg.sign(i, j) == -secagg.sign(j, i) for i, j in itertools.combinations(range(5), 2))


def test_secrets_from_the_operating_system_work():
    secret = operating_system(32)
    assert join(dict(zip((3, 9), split(operating_system, secret, 2, (3, 9)), strict=True))) == secret
