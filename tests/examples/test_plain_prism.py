"""The plain PRISM of examples/ computes the same loss and gradient as the fast one."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.data import load
from vitrail.methods.prism.loss import eq1
from vitrail.nets.feature_moments import FeatureMoments, to_float
from vitrail.nets.features import load_features
from vitrail.nets.generators import build_generator
from vitrail.nets.masked import Masked, sample_mask

pytestmark = pytest.mark.slow

needs_assets = pytest.mark.skipif("VITRAIL_ASSETS" not in os.environ, reason="VITRAIL_ASSETS is not set")
PATH = Path(__file__).parents[2] / "examples" / "plain_prism.py"


@pytest.fixture(scope="module")
def plain():
    spec = importlib.util.spec_from_file_location("plain_prism", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def both(plain, generator, features, size, batch, times_theta, dtype):
    """Return loss and gradient of the scores, plain and fast, for the same weights, scores, draws, noise and images."""
    pixels = load("digits", size=size).train.pixels[:30]
    psi = load_features(features).to(dtype)
    net = Masked(build_generator(generator, (1, size, size), 0), seed=3).to(dtype)
    s = torch.randn(net.size, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
    z = torch.randn(batch, net.z, generator=torch.Generator().manual_seed(2)).to(dtype)

    G = plain.Generator(1, net.z, (net.net.first.out_channels, *(b.conv1.out_channels for b in net.net.blocks)))
    layers = [m for m in G.to(dtype).modules() if isinstance(m, plain.MaskedWeight)]
    for layer, W, scores, shape in zip(
        layers, net.W.split(net.sizes), s.detach().split(net.sizes), net.shapes.values(), strict=True
    ):
        assert layer.W.shape == shape
        assert torch.equal(layer.W.abs(), W.view(shape).abs())  # same magnitudes
        layer.W.copy_(W.view(shape))
        layer.s.data.copy_(scores.view(shape))
        layer.times_theta = times_theta
    fakes = G(z, torch.Generator().manual_seed(4))
    slow = plain.mmd(psi, to_float(pixels).to(dtype), fakes)
    slow.backward()
    slow_grad = torch.cat([p.grad.flatten() for p in G.parameters()])

    if dtype == torch.float64:  # real moments are stored in single precision
        f = plain.relus(psi, to_float(pixels).to(dtype))
        real = FeatureMoments(f.mean(0)[None], f.square().mean(0)[None], torch.ones(1))
    else:
        real = FeatureMoments.of_images(psi, pixels, np.zeros(len(pixels), np.int64), 1, "cpu")
    mask = sample_mask(torch.sigmoid(s), torch.Generator().manual_seed(4), times_theta)
    fast = eq1(psi, real, 1.0)(net(mask, z, None), torch.zeros(batch).long())
    fast.backward()
    return slow.item(), slow_grad, fast.item(), s.grad


def relative_error(a, b):
    return ((a - b).norm() / a.norm()).item()


@pytest.mark.parametrize("times_theta", [False, True])
@pytest.mark.parametrize(("generator", "size", "batch"), [("small", 8, 20), ("small", 32, 5), ("resnet", 8, 4)])
def test_loss_and_gradient_are_equal_in_double_precision(plain, generator, size, batch, times_theta):
    slow, slow_grad, fast, grad = both(plain, generator, "vitrail-fashion", size, batch, times_theta, torch.float64)
    assert fast == pytest.approx(slow, rel=1e-11)
    assert relative_error(slow_grad, grad) < 1e-10


@pytest.mark.parametrize("times_theta", [False, True])
@pytest.mark.parametrize("size", [8, 32])
def test_loss_and_gradient_are_equal_in_single_precision_up_to_rounding(plain, size, times_theta):
    """Rounding changes the sign of about one ReLU input in a million."""
    slow, slow_grad, fast, grad = both(plain, "small", "vitrail-fashion", size, 40, times_theta, torch.float32)
    assert fast == pytest.approx(slow, rel=1e-5)
    assert relative_error(slow_grad, grad) < 5e-3


@needs_assets
@pytest.mark.parametrize(("dtype", "loss", "gradient"), [(torch.float64, 1e-11, 1e-10), (torch.float32, 1e-5, 1e-2)])
def test_loss_and_gradient_are_equal_for_the_papers_network_and_vgg19(plain, dtype, loss, gradient):
    slow, slow_grad, fast, grad = both(plain, "resnet", "vgg19", 32, 4, True, dtype)
    assert fast == pytest.approx(slow, rel=loss)
    assert relative_error(slow_grad, grad) < gradient


def test_the_example_trains_and_writes_a_grid(plain, tmp_path, capsys):
    arguments = [
        "--rounds",
        "3",
        "--clients",
        "2",
        "--steps",
        "4",
        "--batch",
        "32",
        "--out",
        str(tmp_path / "grid.png"),
    ]
    plain.main(arguments)
    losses = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 3
    assert losses[2] < losses[0]
    assert (tmp_path / "grid.png").read_bytes()[:4] == b"\x89PNG"


def test_the_example_imports_no_networks_of_the_package(plain):
    """It must not call what it is compared with: only data, image grids and ψ's weights come from the package."""
    lines = [line for line in PATH.read_text().splitlines() if line.startswith("from vitrail")]
    imported = {name.strip() for line in lines for name in line.split(" import ")[1].split(",")}
    assert imported == {"load", "write_grid", "Features", "load_features", "to_float"}
