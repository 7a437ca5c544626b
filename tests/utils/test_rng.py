"""Named random streams."""

import random

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitrail.utils.rng import Rng

keys = st.lists(st.integers() | st.text(max_size=4) | st.binary(max_size=4), max_size=4).map(tuple)


def test_streams_never_change():
    """All runs depend on these numbers."""
    assert Rng((1, "a")).child("x", 2).seed() == 1900423068295097556
    assert Rng((7,)).child("noise").numpy().integers(100, size=3).tolist() == [99, 11, 90]


@given(keys, keys)
def test_different_keys_give_different_seeds(one, two):
    same = one == two and [type(part) for part in one] == [type(part) for part in two]
    assert (Rng(one).seed() == Rng(two).seed()) == same


def test_a_stream_does_not_depend_on_global_state_or_earlier_draws():
    def draws():
        rng = Rng((3,)).child("x")
        return rng.numpy().random(4).tolist(), torch.rand(4, generator=rng.torch()).tolist()

    expected = draws()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    Rng((3,)).child("y").numpy().random(100)
    assert draws() == expected
