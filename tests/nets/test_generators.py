"""Generators: sizes, outputs, and registration of a user's own."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

import vitrail
from vitrail.models.inspection import inspect_model
from vitrail.models.model import Model
from vitrail.models.model_file import open_model
from vitrail.nets import generators
from vitrail.nets.generators import GENERATORS, build_generator, with_label
from vitrail.utils.errors import Malformed, VitrailError

BUILTIN = ("small", "resnet", "sngan", "dcgan", "smooth")
WEIGHTS = ("weight", "bias")


@pytest.mark.parametrize(
    ("shape", "elements"), [((1, 32, 32), 3_543_616), ((3, 32, 32), 3_544_768), ((3, 64, 64), 12_195_520)]
)
def test_the_papers_resnet_has_the_number_of_mask_elements_of_the_paper(shape, elements):
    with torch.device("meta"):
        assert sum(p.numel() for p in build_generator("resnet", shape, 0).parameters()) == elements


@pytest.mark.parametrize("name", BUILTIN)
@pytest.mark.parametrize(("shape", "classes"), [((1, 8, 8), 3), ((3, 32, 32), 0), ((1, 64, 64), 2)])
def test_every_generator_makes_images_of_its_shape_and_has_only_weights(name, shape, classes):
    g = build_generator(name, shape, classes, width=0.05)
    y = torch.arange(2) % classes if classes else None
    images = g(torch.randn(2, g.z), y)
    assert images.shape == (2, *shape)
    assert images.abs().max() <= 1
    assert all(key.endswith("weight" if name != "smooth" else WEIGHTS) for key, _ in g.named_parameters())


@pytest.mark.parametrize(("name", "shape", "classes"), [("small", (1, 8, 8), 3), ("resnet", (3, 32, 32), 0)])
def test_the_first_layer_is_a_transposed_convolution_of_one_pixel(name, shape, classes):
    g = build_generator(name, shape, classes, width=0.1).double()
    z, y = torch.randn(5, g.z, generator=torch.Generator().manual_seed(1)).double(), torch.arange(5) % max(classes, 1)
    h = g.blocks(g.first(generators.with_label(z, y, classes)[:, :, None, None]))
    torch.testing.assert_close(g(z, y), torch.tanh(g.last(torch.relu(g.bn(h)))))


def test_width_scales_the_channels():
    whole, half = (
        sum(p.numel() for p in build_generator("resnet", (1, 32, 32), 0, w).parameters()) for w in (1.0, 0.5)
    )
    assert 0.25 < half / whole < 0.35  # more than a quarter, because the noise keeps its width


def test_an_unknown_generator_is_refused_with_the_known_names():
    with pytest.raises(VitrailError, match="small, resnet, sngan, dcgan, smooth"):
        build_generator("biggan", (1, 32, 32), 0)


class Tiny(nn.Module):
    """A generator as a user would write it."""

    def __init__(self, shape, classes, width):
        super().__init__()
        self.z, self.classes = 6, classes
        channels = max(2, round(8 * width))
        self.first = nn.ConvTranspose2d(6 + classes, channels, shape[1], bias=False)
        self.norm = nn.BatchNorm2d(channels, affine=False)
        self.last = nn.Conv2d(channels, shape[0], 3, padding=1, bias=False)

    def forward(self, z, labels):
        h = self.first(with_label(z, labels, self.classes)[:, :, None, None])
        return torch.tanh(self.last(torch.relu(self.norm(h))))


@pytest.fixture
def register():
    """Register entries for one test."""
    names = []

    def add(name, entry):
        GENERATORS.add(name, entry)
        names.append(name)

    yield add
    for name in names:
        GENERATORS._added.pop(name)


TRAINING = {"data": "digits", "size": 8, "clients": 2, "rounds": 1, "local_steps": 1, "batch_size": 10, "workers": 1}


@pytest.mark.parametrize(("method", "network"), [("prism", {}), ("moments", {"network": "masked"}), ("moments", {})])
def test_a_registered_generator_is_trained_stored_and_loaded(method, network, register, tmp_path):
    register("tiny", Tiny)
    run = vitrail.train(method, **TRAINING, **network, generator="tiny", width=2, out=str(tmp_path / "run"))
    generator = vitrail.load(run.folder)
    assert isinstance(generator.net, Tiny)
    assert generator.net.first.out_channels == 16
    assert generator.sample(3).shape == (3, 1, 8, 8)
    found = inspect_model(run.folder)
    assert (found["architecture"], found["z"]) == ("tiny", 6)
    if generator.kind == "masked":
        assert 0 < found["mask"]["share"] < 1


def test_a_file_with_an_unregistered_generator_is_refused_with_the_remedy(register, tmp_path):
    register("tiny", Tiny)
    run = vitrail.train("prism", **TRAINING, generator="tiny", out=str(tmp_path / "run"))
    entry = GENERATORS._added.pop("tiny")
    try:
        with pytest.raises(Malformed, match=r"generator 'tiny' is not registered.*import the module.*VITRAIL_PLUGINS"):
            vitrail.load(run.folder)
    finally:
        GENERATORS._added["tiny"] = entry


def test_a_name_in_a_file_imports_no_module(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    tree = {"generator": "evil:Net", "shape": [1, 8, 8], "classes": 0, "width": 1.0, "seed": 1}
    with pytest.raises(Malformed, match="not registered"):
        open_model(Model("masked", {**tree, "mask": np.zeros(4, np.uint8)}), [])
    with pytest.raises(Malformed, match="kind 'evil:Kind', which is not registered"):
        open_model(Model("evil:Kind", tree), [])
    assert "evil" not in sys.modules


def test_an_unknown_generator_setting_lists_the_known_names_and_the_nearest():
    with pytest.raises(VitrailError, match=r"one of small, resnet, sngan, dcgan, smooth.*did you mean resnet\?"):
        vitrail.train("prism", generator="resnett")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda net: setattr(net, "z", 0.5), "positive integer attribute z"),
        (lambda net: setattr(net, "last", nn.Conv2d(8, 2, 3, padding=1)), r"images \(2, 1, 8, 8\).*returned \(2, 2, 8, 8\)"),
        (lambda net: setattr(net, "table", torch.zeros(3)), "register_buffer"),
        (lambda net: setattr(net, "last", None), "trial on the meta device failed"),
    ],
)  # fmt: skip
def test_a_registered_generator_that_does_not_fit_is_refused_before_training(change, message, register):
    def make(shape, classes, width):
        net = Tiny(shape, classes, width)
        change(net)
        return net

    register("wrong", make)
    with pytest.raises(VitrailError, match=message):
        build_generator("wrong", (1, 8, 8), 0)


def test_the_memory_of_a_registered_generator_is_checked_before_it_is_built(register):
    register("huge", lambda shape, classes, width: Tiny(shape, classes, 1e6 * width))
    tree = {"generator": "huge", "shape": [1, 64, 64], "classes": 0, "width": 8.0, "seed": 1}
    with pytest.raises(Malformed, match="a mask of 4 bytes for a network"):
        open_model(Model("masked", {**tree, "mask": np.zeros(4, np.uint8)}), [])
