"""A mixture: its noise says who makes a picture, among those that know the label."""

import pytest
import torch
from torch import nn

from vitrail.nets.mixture import Mixture, knows


class Number(nn.Module):
    """Makes pictures that tell who made them, and of what noise."""

    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, z, y=None):
        return torch.stack([torch.full((len(z),), float(self.k)), z[:, 0]], 1)[:, :, None, None]


def test_pictures_keep_their_places_and_makers_are_even():
    net = Mixture([Number(k) for k in range(4)], 3, knows([[]] * 4, 0))
    z = torch.randn(8000, net.z, generator=torch.Generator().manual_seed(1))
    made = net(z)
    assert net.z == 4
    assert made[:, 1, 0, 0].equal(z[:, 0])
    assert torch.allclose(made[:, 0, 0, 0].long().bincount() / 8000, torch.tensor(0.25), atol=0.02)
    assert torch.corrcoef(made[:, :, 0, 0].T)[0, 1].abs() < 0.04  # who it is tells nothing of the rest of the noise


def test_a_label_nobody_knows_may_come_from_anybody_and_the_others_from_who_knows_them():
    net = Mixture([Number(k) for k in range(3)], 1, knows([[0], [0, 1], [1]], 3))
    z = torch.randn(3000, net.z, generator=torch.Generator().manual_seed(2))
    y = torch.arange(3000) % 3
    who = net(z, y)[:, 0, 0, 0]
    assert [set(who[y == k].tolist()) for k in range(3)] == [{0.0, 1.0}, {1.0, 2.0}, {0.0, 1.0, 2.0}]


def test_the_ends_of_the_unit_interval_are_somebodys():
    net = Mixture([Number(0), Number(1)], 1, knows([[], []], 0))
    assert net.component(torch.tensor([0.0, 1.0]), None).tolist() == [0, 1]


def test_a_mixture_of_nothing_is_refused():
    with pytest.raises(ValueError, match="0 generators"):
        Mixture([], 1, knows([], 0))
