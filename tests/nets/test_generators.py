"""Generators that are masked."""

import pytest
import torch

from vitrail.nets import generators
from vitrail.nets.generators import GENERATORS, build
from vitrail.utils.errors import VitrailError


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


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize(("name", "shape", "classes"), [("small", (1, 8, 8), 3), ("resnet", (3, 32, 32), 0)])
def test_where_it_is_differentiated_the_network_and_its_gradient_are_the_same(name, shape, classes, mode, monkeypatch):
    g = build(name, shape, classes, width=0.1).double().train(mode)
    z, y = torch.randn(5, g.z, generator=torch.Generator().manual_seed(1)).double(), torch.arange(5) % max(classes, 1)

    def run():
        pictures = g(z, y if classes else None)
        return pictures, torch.autograd.grad(pictures.square().sum(), g.parameters())

    fast, fast_grads = run()
    monkeypatch.setattr(generators, "differentiates", lambda _: False)
    plain, plain_grads = run()
    torch.testing.assert_close(fast, plain)
    torch.testing.assert_close(fast_grads, plain_grads)


def test_width_scales_the_channels():
    whole, half = (sum(p.numel() for p in build("resnet", (1, 32, 32), 0, w).parameters()) for w in (1.0, 0.5))
    assert 0.25 < half / whole < 0.35  # a quarter, but for the noise that is as wide as before


def test_an_unknown_generator_is_refused_with_the_known_ones():
    with pytest.raises(VitrailError, match="small, resnet, sngan, dcgan"):
        build("biggan", (1, 32, 32), 0)
