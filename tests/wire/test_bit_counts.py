"""Sums of masks."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.wire.bit_counts import BitCounts


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 300), st.integers(0, 70), st.integers(0, 2**32 - 1))
def test_counts_equal_a_plain_sum_for_any_size_and_number_of_masks(size, masks, seed):
    drawn = np.random.default_rng(seed).random((masks, size)) < 0.7
    counts = BitCounts(size)
    for mask in drawn:
        counts.add(np.packbits(mask))
    assert counts.totals().tolist() == drawn.sum(0).tolist()


def test_memory_grows_with_the_bits_of_a_count_not_with_the_masks():
    counts = BitCounts(6400)
    for _ in range(1000):
        counts.add(np.full(800, 255, np.uint8))
    sizes = [x.nbytes for x in (*counts.planes, *counts.pending) if x is not None]
    assert sum(sizes) <= 2 * 800 * (1000).bit_length()
    assert (counts.totals() == 1000).all()
