"""The frozen random network, its mask and the training of its scores."""

import math

import numpy as np
import pytest
import torch

from tests.federation import federate, quick
from vitrail.methods.masks import learning_rate
from vitrail.models.model_file import open_model
from vitrail.nets.generators import build_generator
from vitrail.nets.masked import Masked, random_signs, sample_mask


@pytest.mark.parametrize("times_theta", [False, True])
def test_straight_through_gradient_equals_the_papers_formula(times_theta):
    """ds = dL/dM · θ(1-θ), multiplied by θ in the paper's code."""
    s = torch.randn(50, generator=torch.Generator().manual_seed(1), requires_grad=True)
    dM = torch.randn(50, generator=torch.Generator().manual_seed(2))
    mask = sample_mask(torch.sigmoid(s), torch.Generator().manual_seed(3), times_theta)
    (mask * dM).sum().backward()
    for i in range(50):
        theta = 1 / (1 + math.exp(-s[i].item()))
        expected = dM[i].item() * theta * (1 - theta) * (theta if times_theta else 1)
        assert s.grad[i].item() == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_masks_are_bernoulli_samples_of_theta():
    s = torch.linspace(-3, 3, 7)
    draw = torch.Generator().manual_seed(0)
    masks = torch.stack([sample_mask(torch.sigmoid(s), draw) for _ in range(4000)])
    assert set(masks.unique().tolist()) == {0.0, 1.0}
    assert torch.allclose(masks.mean(0), torch.sigmoid(s), atol=4 * 0.5 / math.sqrt(4000))


def test_gradient_through_a_masked_network_equals_plain_autograd():
    """With W⊙M as ordinary weights, dL/dM is dL/dweight · W."""
    net = Masked(build_generator("small", (1, 8, 8), 10), seed=4)
    mask = (torch.rand(net.size, generator=torch.Generator().manual_seed(1)) < 0.5).float().requires_grad_()
    z, y = torch.randn(6, 64, generator=torch.Generator().manual_seed(2)), torch.arange(6)
    net(mask, z, y).square().sum().backward()

    plain = Masked(build_generator("small", (1, 8, 8), 10), seed=4).fix(mask.detach()).requires_grad_(True)
    plain(z, y).square().sum().backward()
    dweight = torch.cat([p.grad.flatten() for p in plain.parameters()])
    assert torch.allclose(mask.grad, dweight * net.W, rtol=1e-4, atol=1e-5)


def test_frozen_weights_are_signs_of_one_magnitude_per_layer():
    net = Masked(build_generator("small", (1, 32, 32), 0), seed=9)
    for w, shape in zip(net.W.split(net.sizes), net.shapes.values(), strict=True):
        fan_in = shape[0] if shape[2] == 4 else shape[1] * shape[2] * shape[3]
        assert torch.allclose(w.abs(), torch.tensor(math.sqrt(2 / fan_in)))
        assert abs((w > 0).float().mean() - 0.5) < 4 * 0.5 / math.sqrt(w.numel())


def test_frozen_signs_are_the_bits_of_philox():
    """The signs come bit for bit from NumPy's counter, so every machine builds the same network."""
    words = np.random.Philox(key=7).random_raw(2)
    expected = [
        1.0 if byte >> (7 - i) & 1 else -1.0 for w in words for byte in int(w).to_bytes(8, "little") for i in range(8)
    ]
    assert random_signs(7, 100).tolist() == expected[:100]


@pytest.mark.parametrize(
    ("size", "channels", "elements"), [(32, 1, 3_543_616), (32, 3, 3_544_768), (64, 3, 12_195_520)]
)
def test_the_papers_network_has_the_right_number_of_mask_elements(size, channels, elements):
    with torch.device("meta"):
        assert sum(p.numel() for p in build_generator("resnet", (channels, size, size), 0).parameters()) == elements


def test_learning_rate_is_cosine_or_constant():
    cosine, constant = quick("prism", rounds=4), quick("prism", schedule="constant")
    assert [round(learning_rate(cosine, cosine.lr, t) / cosine.lr, 3) for t in range(4)] == [1, 0.854, 0.5, 0.146]
    assert learning_rate(constant, constant.lr, 2) == constant.lr


def test_exported_model_is_the_frozen_network_times_the_final_mask(tmp_path):
    method = quick("prism", rounds=1)
    fed, *_ = federate(method, tmp_path)
    model = method.export_models(fed.server)["generator"]
    generator = open_model(model, tuple("0123456789"))
    weights = torch.cat([p.flatten() for p in generator.net.parameters()])
    mask = torch.from_numpy(fed.server["s"]) > 0
    assert weights.equal(Masked(build_generator("small", (1, 8, 8), 10), fed.server["seed"]).W * mask)
    assert set(model.tree) == {"generator", "width", "shape", "classes", "seed", "mask"}
    assert model.tree["mask"].nbytes <= method.size // 8 + 2
