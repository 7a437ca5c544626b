"""PRISM against slow plain versions of its equations."""

import math

import numpy as np
import pytest
import torch

from tests.federation import digits, federate, quick, shares
from vitrail.artifact import open_model
from vitrail.methods.base import Incoming
from vitrail.nets.features import load_features
from vitrail.nets.generators import build
from vitrail.nets.masked import Masked, random_signs, sample_mask
from vitrail.nets.moments import Moments, class_moments, mix, moment_loss, to_float
from vitrail.rng import Rng
from vitrail.wire.entropy import ideal_bytes
from vitrail.wire.message import decode


@pytest.mark.parametrize("times_theta", [False, True])
def test_straight_through_gradient_is_the_papers(times_theta):
    """ds = dL/dM · θ(1-θ), times θ once more in published code."""
    s = torch.randn(50, generator=torch.Generator().manual_seed(1), requires_grad=True)
    dM = torch.randn(50, generator=torch.Generator().manual_seed(2))
    mask = sample_mask(s, torch.Generator().manual_seed(3), times_theta)
    (mask * dM).sum().backward()
    for i in range(50):
        theta = 1 / (1 + math.exp(-s[i].item()))
        expected = dM[i].item() * theta * (1 - theta) * (theta if times_theta else 1)
        assert s.grad[i].item() == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_masks_are_bernoulli_draws_of_theta():
    s = torch.linspace(-3, 3, 7)
    draw = torch.Generator().manual_seed(0)
    masks = torch.stack([sample_mask(s, draw) for _ in range(4000)])
    assert set(masks.unique().tolist()) == {0.0, 1.0}
    assert torch.allclose(masks.mean(0), torch.sigmoid(s), atol=4 * 0.5 / math.sqrt(4000))


def test_gradient_through_a_masked_network_equals_plain_autograd_on_its_weights():
    """With W⊙M as ordinary weights, dL/dM must be dL/dweight · W."""
    net = Masked(build("small", (1, 8, 8), 10), seed=4)
    mask = (torch.rand(net.size, generator=torch.Generator().manual_seed(1)) < 0.5).float().requires_grad_()
    z, y = torch.randn(6, 64, generator=torch.Generator().manual_seed(2)), torch.arange(6)
    net(mask, z, y).square().sum().backward()

    plain = Masked(build("small", (1, 8, 8), 10), seed=4).fix(mask.detach()).requires_grad_(True)
    plain(z, y).square().sum().backward()
    dweight = torch.cat([p.grad.flatten() for p in plain.parameters()])
    assert torch.allclose(mask.grad, dweight * net.W, rtol=1e-4, atol=1e-5)


def test_frozen_weights_are_signs_of_one_magnitude_per_layer():
    net = Masked(build("small", (1, 32, 32), 0), seed=9)
    for w, shape in zip(net.W.split(net.sizes), net.shapes.values(), strict=True):
        fan_in = shape[0] if shape[2] == 4 else shape[1] * shape[2] * shape[3]
        assert torch.allclose(w.abs(), torch.tensor(math.sqrt(2 / fan_in)))
        assert abs((w > 0).float().mean() - 0.5) < 4 * 0.5 / math.sqrt(w.numel())


def test_frozen_signs_are_the_bits_of_philox():
    """Bit for bit from NumPy's counter, so that every machine builds the same network."""
    words = np.random.Philox(key=7).random_raw(2)
    expected = [
        1.0 if byte >> (7 - i) & 1 else -1.0 for w in words for byte in int(w).to_bytes(8, "little") for i in range(8)
    ]
    assert random_signs(7, 100).tolist() == expected[:100]


@pytest.mark.parametrize(
    ("size", "channels", "elements"), [(32, 1, 3_543_616), (32, 3, 3_544_768), (64, 3, 12_195_520)]
)
def test_the_papers_network_has_its_true_number_of_mask_elements(size, channels, elements):
    with torch.device("meta"):
        assert sum(p.numel() for p in build("resnet", (channels, size, size), 0).parameters()) == elements


def plain_moments(features, labels, c):
    """Mean and variance of each feature over the pictures of class c, one number at a time."""
    rows = [f for f, y in zip(features.double().tolist(), labels.tolist(), strict=True) if y == c]
    mean = [sum(col) / len(rows) for col in zip(*rows, strict=True)]
    var = [sum((v - m) ** 2 for v in col) / len(rows) for col, m in zip(zip(*rows, strict=True), mean, strict=True)]
    return torch.tensor(mean), torch.tensor(var)


def test_real_and_fake_moments_equal_a_plain_computation_per_class():
    psi = load_features("vitrail-fashion")
    some = digits().train.take(np.arange(70))
    flat = psi.flat(to_float(some.pixels))
    y = torch.from_numpy(some.labels)
    real = Moments.of_pictures(psi, some.pixels, some.labels, 10, "cpu")
    fake = class_moments(psi(to_float(some.pixels)), y, 10)
    for c in range(10):
        mean, var = plain_moments(flat, y, c)
        for moments in (real, fake):
            assert torch.allclose(moments.first[c], mean, atol=1e-5)
            assert torch.allclose(moments.variance[c], var, atol=1e-4, rtol=1e-3)
    assert torch.allclose(real.share, torch.bincount(y, minlength=10) / 70)


def test_the_loss_is_equation_one():
    """|μ - μ'|² + |σ² - σ'²|², classes weighted by their share."""
    g = torch.Generator().manual_seed(0)
    a, b = torch.rand(40, 5, generator=g), torch.rand(40, 5, generator=g)
    y = torch.arange(40) % 2
    real, fake = (class_moments([x], y, 2) for x in (a, b))
    expected = 0.0
    for c in range(2):
        (m1, v1), (m2, v2) = plain_moments(a, y, c), plain_moments(b, y, c)
        expected += 0.5 * (((m1 - m2) ** 2).sum() + ((v1 - v2) ** 2).sum()).item()
    assert moment_loss(real, fake).item() == pytest.approx(expected, rel=1e-4)


def test_a_class_the_client_does_not_hold_adds_nothing_to_the_loss():
    psi = load_features("vitrail-fashion")
    threes = digits().train.take(np.flatnonzero(digits().train.labels == 3)[:5])
    real = Moments.of_pictures(psi, threes.pixels, threes.labels, 10, "cpu")
    layers = [x.clone().requires_grad_() for x in psi(torch.rand(20, 1, 8, 8) * 2 - 1)]
    y = torch.arange(20) % 10
    moment_loss(real, class_moments(layers, y, 10)).backward()
    touched = torch.stack([x.grad.flatten(1).abs().sum(1) for x in layers]).sum(0) > 0
    assert touched.tolist() == (y == 3).tolist()


def test_smoothing_is_an_exponential_average_whose_gradient_reaches_the_new_batch_whole():
    old, new = (Moments(torch.full((1, 2), v), torch.full((1, 2), v), torch.ones(1)) for v in (1.0, 3.0))
    new.first.requires_grad_()
    mixed = mix(old, new, 0.25)
    assert mixed.first.tolist() == [[1.5, 1.5]]
    mixed.first.sum().backward()
    assert new.first.grad.tolist() == [[1.0, 1.0]]


def test_classes_beyond_a_batch_take_turns_and_absent_ones_stay_as_they_were():
    feature = torch.arange(6.0)[:, None]
    first, second = (class_moments([feature[i : i + 3]], torch.arange(i, i + 3), 6) for i in (0, 3))
    both = mix(first, second, 0.1)
    assert both.first.flatten().tolist() == list(range(6))
    assert (both.share > 0).all()
    real = class_moments([feature + 1], torch.arange(6), 6)
    assert moment_loss(real, first).item() == pytest.approx(3 / 6)  # the three classes seen so far
    assert moment_loss(real, both).item() == pytest.approx(1)


def test_a_batch_smaller_than_the_classes_still_trains_them_all(tmp_path, monkeypatch):
    from vitrail.methods import prism

    seen = set()
    real = prism.class_moments
    monkeypatch.setattr(prism, "class_moments", lambda f, y, c: seen.update(y.tolist()) or real(f, y, c))
    federate(quick("prism", rounds=1, batch=4, local_steps=3), tmp_path, holds=shares(each=60))
    assert seen == set(range(10))


def test_the_server_averages_masks_into_theta(tmp_path):
    method = quick("prism", rounds=1)
    fed, _, traffic = federate(method, tmp_path)
    coded = [next(p for p in decode(r).parts if p.name == "mask").array() for _, r in traffic.replies]
    masks = [method.decode_mask({"counts": None}, raw) for raw in coded]
    assert np.array_equal(fed.server["counts"], sum(m.astype(int) for m in masks))
    theta = np.clip(sum(m.astype(float) for m in masks) / 3, method.clamp, 1 - method.clamp)
    assert np.allclose(method.scores(fed.server).numpy(), np.log(theta / (1 - theta)), atol=1e-5)


def test_a_mask_costs_one_bit_an_element_and_counts_two_for_three_clients(tmp_path):
    method = quick("prism", rounds=2, coding="packed")
    _, outcomes, _ = federate(method, tmp_path)
    assert -(-method.size // 8) < outcomes[1].up["client-0"] < method.size // 8 + 200
    assert -(-method.size // 4) < outcomes[1].down["client-0"] < method.size // 4 + 200
    assert outcomes[0].down["client-0"] < 200  # the first scores follow from the seed


def test_coding_changes_bytes_and_nothing_else(tmp_path):
    fed, outcomes, _ = federate(quick("prism", rounds=3), tmp_path / "a")
    packed, plain, _ = federate(quick("prism", rounds=3, coding="packed"), tmp_path / "b")
    assert np.array_equal(fed.server["counts"], packed.server["counts"])
    for t in (1, 2):
        assert outcomes[t].up["client-0"] < 0.7 * plain[t].up["client-0"]
        assert outcomes[t].down["client-0"] < plain[t].down["client-0"]
        assert outcomes[t].floats_up == plain[t].floats_up
        assert outcomes[t].floats_down == plain[t].floats_down
    assert outcomes[2].down["client-0"] < 0.7 * outcomes[1].down["client-0"]  # θ is coded under the θ before it


def test_uploads_and_counts_are_within_a_hundredth_of_the_ideal(tmp_path):
    method = quick("prism", rounds=3)
    two, *_ = federate(method, tmp_path, rounds=2)
    _, _, traffic = federate(method, tmp_path, rounds=1, fed=two)
    known = method.known_levels(two.server)
    for _, raw in traffic.replies:
        coded = next(p for p in decode(raw).parts if p.name == "mask").array()
        assert len(coded) <= 1.01 * ideal_bytes(method.decode_mask(two.server, coded), known, 2) + 16
    for _, raw in traffic.requests:
        change = next(p for p in decode(raw).parts if p.name == "change").array()
        assert len(change) <= 1.01 * ideal_bytes(two.server["counts"], two.server["before"], 4) + 32


def test_a_late_joiner_gets_all_counts_and_one_that_holds_others_asks_for_them(tmp_path):
    method = quick("prism", rounds=4)
    few, all_ = shares(2), shares(3)
    fed, *_ = federate(method, tmp_path, rounds=2, holds=few)
    _, _, traffic = federate(method, tmp_path, rounds=1, holds=all_, fed=fed)
    named = {client: {p.name for p in decode(raw).parts} for client, raw in traffic.requests}
    assert "change" in named["client-0"]
    assert "full" in named["client-2"]

    away, _, _ = federate(method, tmp_path / "x", rounds=2)
    (tmp_path / "x" / "client-1.safetensors").unlink()  # it lost what it held
    _, (outcome,), traffic = federate(method, tmp_path / "x", rounds=1, fed=away)
    asked = [{p.name for p in decode(raw).parts} for client, raw in traffic.requests if client == "client-1"]
    assert ["change" in asked[0], "full" in asked[1]] == [True, True]
    assert outcome.answered == ["client-0", "client-1", "client-2"]


def test_scores_stay_finite_when_all_masks_agree(tmp_path):
    method = quick("prism")
    counts = np.array([0, 3] * (method.size // 2), np.int32)
    s = method.scores({"seed": 1, "counts": counts, "clients": 3})
    assert torch.isfinite(s).all()
    assert torch.sigmoid(s).min() == pytest.approx(method.clamp)


def upload(method, k, of, theta, round_=0):
    message = Incoming(round_, {"seed": np.array([7], np.uint64), "stratum": np.array([k, of])})
    return method.uniform(message, Rng((k,)).child("upload")) < theta


def test_stratified_masks_are_bernoulli_and_their_mean_meets_theta_within_one_over_k():
    method, K = quick("prism"), 10
    theta = torch.rand(method.size, generator=torch.Generator().manual_seed(3))
    together = torch.stack([upload(method, k, K, theta) for k in range(K)]).float()
    assert (together.mean(0) - theta).abs().max() <= 1 / K + 1e-5
    for mask in together:  # each by itself is Bern(θ): on average over elements it meets the mean of θ
        assert abs(mask.mean() - theta.mean()) < 4 * 0.5 / math.sqrt(method.size)
    alone = quick("prism", sampling="independent")
    apart = torch.stack([upload(alone, k, K, theta) for k in range(K)]).float()
    assert (apart.mean(0) - theta).square().mean() > 5 * (together.mean(0) - theta).square().mean()


def test_the_product_is_the_frozen_network_under_the_final_mask(tmp_path):
    method = quick("prism", rounds=1)
    fed, *_ = federate(method, tmp_path)
    model = method.products(fed.server)["generator"]
    generator = open_model(model, tuple("0123456789"))
    weights = torch.cat([p.flatten() for p in generator.net.parameters()])
    mask = torch.from_numpy(fed.server["counts"]) / 3 > 0.5
    assert weights.equal(Masked(build("small", (1, 8, 8), 10), fed.server["seed"]).W * mask)
    assert set(model.tree) == {"generator", "shape", "classes", "seed", "mask"}
    assert model.tree["mask"].nbytes == -(-method.size // 8)


def test_training_lowers_the_loss(tmp_path):
    method = quick("prism", rounds=6, local_steps=8, batch=30)
    _, outcomes, _ = federate(method, tmp_path, holds=shares(each=60))
    assert outcomes[-1].metrics["loss"] < 0.8 * outcomes[0].metrics["loss"]


def test_learning_rate_follows_a_cosine_or_stays():
    assert [round(quick("prism", rounds=4).rate(t) / quick("prism").lr, 3) for t in range(4)] == [
        1,
        0.854,
        0.5,
        0.146,
    ]
    assert quick("prism", schedule="constant").rate(2) == quick("prism").lr
