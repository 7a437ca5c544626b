"""Generators that are masked."""

import pytest
import torch

from vitrail.errors import VitrailError
from vitrail.nets.generators import GENERATORS, build


@pytest.mark.parametrize(
    ("shape", "elements"), [((1, 32, 32), 3_543_616), ((3, 32, 32), 3_544_768), ((3, 64, 64), 12_195_520)]
)
def test_the_papers_resnet_has_the_papers_number_of_mask_elements(shape, elements):
    with torch.device("meta"):
        assert sum(p.numel() for p in build("resnet", shape, 0).parameters()) == elements


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize(("shape", "classes"), [((1, 8, 8), 3), ((3, 32, 32), 0), ((1, 64, 64), 2)])
def test_every_generator_makes_pictures_of_the_asked_shape_and_has_nothing_but_weights(name, shape, classes):
    g = build(name, shape, classes, width=0.05)
    y = torch.arange(2) % classes if classes else None
    pictures = g(torch.randn(2, g.z), y)
    assert pictures.shape == (2, *shape)
    assert pictures.abs().max() <= 1
    assert all(key.endswith("weight") for key, _ in g.named_parameters())


def test_width_scales_the_channels():
    whole, half = (sum(p.numel() for p in build("resnet", (1, 32, 32), 0, w).parameters()) for w in (1.0, 0.5))
    assert 0.25 < half / whole < 0.35  # a quarter, but for the noise that is as wide as before


def test_an_unknown_generator_is_refused_with_the_known_ones():
    with pytest.raises(VitrailError, match="small, resnet, sngan, dcgan"):
        build("biggan", (1, 32, 32), 0)
