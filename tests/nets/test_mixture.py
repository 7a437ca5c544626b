"""A mixture chooses the generator of each image by noise, among those that know the label."""

import pytest
import torch
from torch import nn

from vitrail.nets.mixture import Mixture, known_classes


class Number(nn.Module):
    """Generates images that contain its index and the noise."""

    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, z, y=None):
        return torch.stack([torch.full((len(z),), float(self.k)), z[:, 0]], 1)[:, :, None, None]


def test_images_keep_their_order_and_parts_are_chosen_evenly():
    net = Mixture([Number(k) for k in range(4)], 3, known_classes([[]] * 4, 0))
    z = torch.randn(8000, net.z, generator=torch.Generator().manual_seed(1))
    images = net(z)
    assert net.z == 4
    assert images[:, 1, 0, 0].equal(z[:, 0])
    assert torch.allclose(images[:, 0, 0, 0].long().bincount() / 8000, torch.tensor(0.25), atol=0.02)
    assert torch.corrcoef(images[:, :, 0, 0].T)[0, 1].abs() < 0.04  # the part is independent of the other noise


def test_a_label_is_drawn_by_parts_that_know_it_or_by_any_if_none_does():
    net = Mixture([Number(k) for k in range(3)], 1, known_classes([[0], [0, 1], [1]], 3))
    z = torch.randn(3000, net.z, generator=torch.Generator().manual_seed(2))
    y = torch.arange(3000) % 3
    part = net(z, y)[:, 0, 0, 0]
    assert [set(part[y == k].tolist()) for k in range(3)] == [{0.0, 1.0}, {1.0, 2.0}, {0.0, 1.0, 2.0}]


def test_the_ends_of_the_unit_interval_choose_a_part():
    net = Mixture([Number(0), Number(1)], 1, known_classes([[], []], 0))
    assert net.component(torch.tensor([0.0, 1.0]), None).tolist() == [0, 1]


def test_a_mixture_without_parts_is_refused():
    with pytest.raises(ValueError, match="0 generators"):
        Mixture([], 1, known_classes([], 0))
