"""The oracle judges what it should, and only with held-out pictures."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.federation import digits
from vitrail.artifact import Generator
from vitrail.evaluate.oracle import _shift, agreement, train_oracle
from vitrail.rng import Rng

CLASSES = tuple("0123456789")


@pytest.fixture(scope="module")
def oracle():
    return train_oracle(digits().test, 10, Rng((0,)), steps=200)


class Replay(nn.Module):
    """A "generator" that shows real train pictures of the asked class, or of the next one."""

    def __init__(self, off):
        super().__init__()
        self.off = off

    def forward(self, z, y):
        train = digits().train
        rows = [np.flatnonzero(train.labels == (int(c) + self.off) % 10)[i % 100] for i, c in enumerate(y)]
        return torch.from_numpy(train.pixels[rows]).float() / 127.5 - 1


def test_an_oracle_from_a_few_hundred_held_out_digits_knows_digits(oracle):
    assert oracle.accuracy > 0.85


def test_real_pictures_agree_with_their_labels_and_wrong_ones_do_not(oracle):
    right, wrong = (agreement(oracle, Generator(Replay(off), 4, (1, 8, 8), CLASSES, {}), 300) for off in (0, 1))
    assert right > 0.85
    assert wrong < 0.1


def test_agreement_counts_one_by_one(oracle):
    generator = Generator(Replay(0), 4, (1, 8, 8), CLASSES, {})
    hits = sum(
        int(oracle.predict(picture[None])[0]) == i % 10 for i, picture in enumerate(generator.sample(100, seed=2))
    )
    assert agreement(oracle, generator, 100, seed=2) == pytest.approx(hits / 100)


def test_an_oracle_is_the_same_for_the_same_seed(oracle):
    again = train_oracle(digits().test, 10, Rng((0,)), steps=200)
    assert all(a.equal(b) for a, b in zip(oracle.net.parameters(), again.net.parameters(), strict=True))


def test_shifts_move_pictures_by_whole_pixels():
    x = torch.rand(20, 1, 8, 8)
    moved = _shift(x, torch.Generator().manual_seed(0))
    for before, after in zip(x, moved, strict=True):
        inner = before[0, 2:6, 2:6]
        found = [(dy, dx) for dy in range(5) for dx in range(5) if after[0, dy : dy + 4, dx : dx + 4].equal(inner)]
        assert found
