"""Quantized vectors: equal for sender and receiver, each value within half a step."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.test_deltas import ODD, bits, walk
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.wire.quantization import decode, encode, quantize

SIZES = (1500, 20, 480)


def as_read(rows, sizes, width):
    return np.stack([quantize(row, sizes, width) for row in rows])


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([4, 8]), st.integers(1, 3), st.lists(st.integers(1, 20), min_size=1, max_size=4), st.integers(0, 2), st.integers(0, 2**32 - 1))  # fmt: skip
def test_the_receiver_decodes_the_vector_that_the_sender_expects(width, steps, sizes, known, seed):
    draw = np.random.default_rng(seed)
    rows = draw.choice(np.concatenate([ODD, draw.normal(size=20).astype(np.float32)]), (known + steps, sum(sizes)))
    before = as_read(rows[:known], sizes, width) if known else None
    data = encode(rows[known:], sizes, width, before)
    assert bits(decode(data, steps, sizes, width, before)) == bits(as_read(rows[known:], sizes, width))


@pytest.mark.parametrize(("width", "most"), [(8, 127), (4, 7)])
def test_each_tensor_is_quantized_as_by_torch_with_the_same_scale(width, most):
    """Ties may differ, because torch multiplies by one over the scale."""
    row = walk(1)[0]
    found = quantize(row, SIZES, width)
    for mine, own in zip(np.split(found, np.cumsum(SIZES)[:-1]), np.split(row, np.cumsum(SIZES)[:-1]), strict=True):
        scale = float(np.abs(own).max() / np.float32(most))
        theirs = torch.fake_quantize_per_tensor_affine(torch.from_numpy(own), scale, 0, -most, most).numpy()
        assert np.isclose(mine, theirs, rtol=1e-5).mean() > 0.999
        assert np.abs(mine - own).max() <= scale / 2 * 1.001
        assert len(np.unique(mine)) <= 2 * most + 1
        assert np.abs(mine).max() == pytest.approx(np.abs(own).max())


@pytest.mark.parametrize(("width", "first", "next_"), [(8, 1.01, 0.5), (4, 0.8, 0.3)])
def test_vectors_need_at_most_their_bits_and_fewer_with_a_known_previous_one(width, first, next_):
    sizes = (15_000, 5_000)
    rows = walk(3, 20_000)
    full = width / 8 * 20_000
    assert len(encode(rows[:1], sizes, width)) <= first * full + 100
    assert len(encode(rows[1:], sizes, width, as_read(rows[:1], sizes, width))) <= 2 * next_ * full


def test_quantization_is_deterministic():
    rows = walk(2)
    assert encode(rows, SIZES, 4) == encode(rows, SIZES, 4)


def test_zeros_and_extreme_numbers_give_finite_values():
    row = np.float32([0, 0, 0, 1e-45, -1e-45, 3.4e38, -3.4e38])
    for width in (4, 8):
        found = decode(encode(row[None], (3, 2, 2), width), 1, (3, 2, 2), width)[0]
        assert not found[:3].any()
        assert np.isfinite(found).all()


def spoiled(data, scale):
    return data[:4] + np.float32(scale).tobytes() + data[8:]


def test_bytes_that_are_not_quantized_vectors_are_refused():
    rows = walk(2)
    data = encode(rows, SIZES, 8)
    wrong = [data[:-1], data + b"\0", data[: len(data) // 2], b"", data[:3], bytes(len(data))]
    wrong += [spoiled(data, scale) for scale in (np.nan, np.inf, -1.0, -0.0, 3e38)]
    for bad in wrong:
        with pytest.raises(Malformed):
            decode(bad, 2, SIZES, 8)
    for rows_, sizes, width in ((3, SIZES, 8), (1, SIZES, 8), (2, (*SIZES, 1), 8), (2, SIZES[:2], 8), (2, SIZES, 4)):
        with pytest.raises(Malformed):
            decode(data, rows_, sizes, width)


def test_nan_and_wrong_sizes_are_refused_by_the_sender():
    for row in (np.full(2000, np.nan, np.float32), np.zeros(7, np.float32)):
        with pytest.raises(VitrailError, match="cannot be quantized"):
            encode(row[None], SIZES, 8)
