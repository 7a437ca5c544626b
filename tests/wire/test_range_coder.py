"""Range coding: exact decoding, length, and refusal of invalid bytes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.wire.ideal import ideal_bytes
from vitrail.utils.errors import Malformed
from vitrail.wire.range_coder import decode, decode_values, encode, encode_values


@given(data=st.data(), n=st.integers(0, 400), alphabet=st.integers(2, 40), levels=st.integers(1, 12))
@settings(max_examples=200, deadline=None)
def test_symbols_are_decoded_exactly(data, n, alphabet, levels):
    seed = data.draw(st.integers(0, 2**32))
    draw = np.random.default_rng(seed)
    level = draw.integers(levels, size=n)
    skew = draw.dirichlet(np.full(alphabet, 0.2), size=levels)
    symbols = np.array([draw.choice(alphabet, p=skew[v]) for v in level], np.int64)
    coded = encode(symbols, level, alphabet)
    assert np.array_equal(decode(coded, level, alphabet), symbols)
    width = (alphabet - 1).bit_length()
    assert len(coded) <= -(-n * width // 8) + 1  # never longer than packed bits and the first byte


def test_the_code_of_a_mask_is_within_one_percent_of_its_entropy():
    draw = np.random.default_rng(0)
    counts = draw.binomial(10, draw.beta(0.5, 0.5, 200_000))
    mask = draw.random(200_000) < np.clip(counts / 10, 0.02, 0.98)
    coded = encode(mask, counts, 2)
    assert ideal_bytes(mask, counts) < len(coded) < 1.01 * ideal_bytes(mask, counts)
    assert len(coded) < 0.6 * 200_000 / 8


def test_the_code_of_counts_is_within_one_percent_of_the_conditional_entropy():
    draw = np.random.default_rng(1)
    before = draw.binomial(10, draw.beta(0.5, 0.5, 200_000))
    after = draw.binomial(10, np.clip(before / 10, 0.02, 0.98))
    coded = encode(after, before, 11)
    assert len(coded) < 1.01 * ideal_bytes(after, before)
    conditional = [np.bincount(after[before == v], minlength=11) for v in range(11)]
    bits = sum(-(c[c > 0] * np.log2(c[c > 0] / c.sum())).sum() for c in conditional)
    assert ideal_bytes(after, before) == pytest.approx(bits / 8)
    assert len(coded) < 0.8 * len(encode(after, np.zeros(200_000, int), 11))


def test_equal_symbols_need_only_a_table():
    assert len(encode(np.ones(100_000, int), np.zeros(100_000, int), 2)) == 2


@given(st.binary(max_size=80), st.integers(0, 60), st.integers(2, 12))
@settings(max_examples=400, deadline=None)
def test_random_bytes_are_refused_or_are_a_valid_code(raw, n, alphabet):
    levels = np.arange(n) % 3
    try:
        symbols = decode(np.frombuffer(raw, np.uint8), levels, alphabet)
    except Malformed:
        return
    assert raw in (encode(symbols, levels, alphabet, packed).tobytes() for packed in (False, True))


def test_a_truncated_or_changed_code_or_one_for_other_levels_is_refused():
    draw = np.random.default_rng(2)
    levels = draw.integers(4, size=3000)
    mask = draw.random(3000) < np.array([0.02, 0.1, 0.9, 0.98])[levels]
    good = encode(mask, levels, 2)
    assert good[0] == 1
    for bad in (good[:-8], good[:-1], good[:3], good[:0], np.append(good, np.uint8(0)), np.append(good, [1, 2, 3, 4])):
        with pytest.raises(Malformed):
            decode(bad.astype(np.uint8), levels, 2)
    with pytest.raises(Malformed):
        decode(good, np.zeros(3000, int), 2)
    for at in range(len(good)):
        bad = good.copy()
        bad[at] ^= 64
        with pytest.raises(Malformed):
            decode(bad, levels, 2)


@given(hnp.arrays(np.int16, st.integers(1, 400), elements=st.integers(-9, 9) | st.integers(-32768, 32767)))
def test_values_are_decoded_exactly(values):
    coded = encode_values(values)
    assert np.array_equal(decode_values(coded, len(values)), values)


@given(st.binary(max_size=60), st.integers(1, 50))
def test_random_bytes_are_refused_or_decode_to_values(raw, n):
    try:
        values = decode_values(np.frombuffer(raw, np.uint8), n)
    except Malformed:
        return
    assert len(values) == n


def test_symbols_are_packed_on_request_and_decoded_without_a_flag():
    symbols = np.array([0, 1, 1, 0, 0, 0, 0, 0, 0] * 100, np.uint8)
    coded = encode(symbols, np.zeros(900, np.uint8), 2, packed=True)
    assert len(coded) == 1 + 113
    assert np.array_equal(decode(coded, np.zeros(900, np.uint8), 2), symbols)
