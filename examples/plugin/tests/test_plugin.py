"""Tests of the plugin: Vitrail's conformance checks, and its parts by themselves."""

import numpy as np
import torch
from vitrail_plugin_example.generator import Mlp
from vitrail_plugin_example.method import PixelGaussian

import vitrail
from vitrail.data import load
from vitrail.testing import check_method


def test_the_method_passes_the_conformance_checks():
    check_method(PixelGaussian)


def test_the_method_estimates_the_mean_image(tmp_path):
    run = vitrail.train(
        PixelGaussian(temperature=0.0), data="stripes:100", size=8, clients=2, workers=1, out=str(tmp_path / "run")
    )
    data = load("stripes:100", size=8).train
    halves = [data.take(np.arange(k, len(data), 2)).pixels.mean(0) for k in range(2)]
    assert torch.allclose(run.generator.sample(1)[0], torch.from_numpy(sum(halves) / 2 / 255).float(), atol=0.05)


def test_the_generator_is_conditional():
    net = Mlp((1, 8, 8), 2, 1.0)
    z = torch.randn(3, net.z)
    assert net(z, torch.tensor([0, 0, 0])).shape == (3, 1, 8, 8)
    assert not net(z, torch.tensor([0, 0, 0])).equal(net(z, torch.tensor([1, 1, 1])))
