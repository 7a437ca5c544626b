"""Lossless compression of vectors that change smoothly."""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.utils.errors import Malformed
from vitrail.wire.deltas import decode, encode

ODD = np.array([0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38, 1.0, -1.0, 1.1754944e-38], np.float32)


def walk(steps, size=2000, seed=1, smooth=0.9):
    """Weights as of a network trained by Adam: steps of similar size and direction."""
    draw = np.random.default_rng(seed)
    x, move, rows = draw.normal(0, 0.02, size), draw.normal(0, 2e-4, size), []
    for _ in range(steps):
        move = smooth * move + np.sqrt(1 - smooth**2) * draw.normal(0, 2e-4, size)
        x = x + move
        rows.append(x)
    return np.float32(rows)


def bits(a):
    return np.asarray(a, "<f4").tobytes()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 40), st.integers(0, 2), st.integers(0, 2**32 - 1))
def test_any_finite_floats_are_decoded_bit_by_bit(steps, size, known, seed):
    draw = np.random.default_rng(seed)
    drawn = draw.integers(0, 2**32, 50, np.uint32).view(np.float32)
    pool = np.concatenate([ODD, drawn[np.isfinite(drawn)], draw.normal(size=9).astype(np.float32)])
    rows = draw.choice(pool, (known + steps, size))
    before = rows[:known] if known else None
    data = encode(rows[known:], before)
    assert bits(decode(data, (steps, size), before)) == bits(rows[known:])


@pytest.mark.parametrize(("known", "most"), [(0, 0.75), (1, 0.65), (2, 0.6)])
def test_smooth_changes_need_fewer_bytes_with_more_known_vectors(known, most):
    rows = walk(known + 3, 20_000)
    data = encode(rows[known:], rows[:known] if known else None)
    assert len(data) <= most * rows[known:].nbytes
    assert bits(decode(data, (3, 20_000), rows[:known] if known else None)) == bits(rows[known:])


def test_random_numbers_need_at_most_seven_percent_more_bytes():
    rows = np.random.default_rng(1).integers(0, 2**32, (2, 20_000), np.uint32).view(np.float32)
    rows = np.where(np.isfinite(rows), rows, 0).astype(np.float32)
    assert len(encode(rows)) <= 1.07 * rows.nbytes


def test_truncated_extended_or_changed_bytes_are_refused_or_decode_differently():
    rows, before = walk(4)[2:], walk(4)[:2]
    data = encode(rows, before)
    for bad in (data[:-1], data + b"\0", data[: len(data) // 2], b"", bytes(len(data))):
        with pytest.raises(Malformed):
            decode(bad, rows.shape, before)
    with pytest.raises(Malformed):
        decode(data, (3, 2000), before)
    for at in np.random.default_rng(1).integers(0, len(data), 60):
        changed = bytearray(data)
        changed[at] ^= 1 << (at % 8)
        with contextlib.suppress(Malformed):
            assert bits(decode(bytes(changed), rows.shape, before)) != bits(rows)


def test_infinite_numbers_are_refused():
    rows = np.full((1, 8), np.inf, np.float32)
    with pytest.raises(Malformed, match="NaN or infinite"):
        decode(encode(rows), rows.shape)
