"""PRISM against slow plain versions of its equations."""

import math

import numpy as np
import pytest
import torch

from tests.federation import digits, federate, quick, shares
from vitrail.methods.base import ServerMessage
from vitrail.models.model_file import open_model
from vitrail.nets.feature_moments import FeatureMoments, class_moments, mix, moment_loss, to_float
from vitrail.nets.features import load_features
from vitrail.nets.generators import build
from vitrail.nets.masked import Masked, random_signs, sample_mask
from vitrail.utils.rng import Rng
from vitrail.utils.state import load as load_state
from vitrail.wire.entropy import ideal_bytes
from vitrail.wire.message import decode
from vitrail.wire.scores import levels


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
    real = FeatureMoments.of_pictures(psi, some.pixels, some.labels, 10, "cpu")
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
    real = FeatureMoments.of_pictures(psi, threes.pixels, threes.labels, 10, "cpu")
    layers = [x.clone().requires_grad_() for x in psi(torch.rand(20, 1, 8, 8) * 2 - 1)]
    y = torch.arange(20) % 10
    moment_loss(real, class_moments(layers, y, 10)).backward()
    touched = torch.stack([x.grad.flatten(1).abs().sum(1) for x in layers]).sum(0) > 0
    assert touched.tolist() == (y == 3).tolist()


def test_smoothing_is_an_exponential_average_whose_gradient_reaches_the_new_batch_whole():
    old, new = (FeatureMoments(torch.full((1, 2), v), torch.full((1, 2), v), torch.ones(1)) for v in (1.0, 3.0))
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
    from vitrail.methods.prism import loss as prism_loss

    seen = set()
    real = prism_loss.class_moments
    monkeypatch.setattr(prism_loss, "class_moments", lambda f, y, c: seen.update(y.tolist()) or real(f, y, c))
    federate(quick("prism", rounds=1, batch_size=4, local_steps=3), tmp_path, holds=shares(each=60))
    assert seen == set(range(10))


def sent_masks(method, server, traffic):
    """The masks of the replies, as the server reads them."""
    coded = [next(p for p in decode(raw).parts if p.name == "mask").array() for _, raw in traffic.replies]
    return [method.decode_mask(server, raw) for raw in coded]


def first_state(method):
    """The server as it stands when the first replies come."""
    rng = Rng((5,)).child("server")
    return method.start_round(method.server_init(rng.child("init")), list(shares()), rng.child(0, "open"))[0]


def test_the_server_averages_masks_into_theta(tmp_path):
    method = quick("prism", rounds=1)
    fed, _, traffic = federate(method, tmp_path)
    masks = sent_masks(method, first_state(method), traffic)
    theta = np.clip(sum(m.astype(float) for m in masks) / 3, method.clamp, 1 - method.clamp)
    assert np.abs(fed.server["s"] / 1024 - np.log(theta / (1 - theta))).max() <= 0.5 / 1024 + 1e-9


@pytest.mark.parametrize("how", ["expected", "sampled"])
def test_mada_moves_scores_by_the_distance_of_masks(how, tmp_path):
    plain, *_ = federate(quick("prism", rounds=1), tmp_path / "a")
    method = quick("prism", rounds=1, mada=how)
    fed, *_ = federate(method, tmp_path / "b")
    s_t, s_agg = (s / 1024 for s in (first_state(method)["s"], plain.server["s"]))
    a, b = (1 / (1 + np.exp(-s)) for s in (s_t, s_agg))
    lam = np.mean(a * (1 - b) + b * (1 - a))
    told = fed.server["lambda"] / 65536
    assert told == pytest.approx(lam, abs=1e-5 if how == "expected" else 4 * 0.5 / math.sqrt(method.size))
    assert np.abs(fed.server["s"] / 1024 - ((1 - told) * s_t + told * s_agg)).max() <= 1 / 1024


@pytest.mark.parametrize("settings", [{"mada": "expected"}, {"mada": "sampled", "alpha": 40}, {"alpha": 100}])
def test_clients_that_follow_changes_hold_the_servers_scores(settings, tmp_path):
    """What a client computes from counts and λ, round after round, has the bits of what the server has."""
    method = quick("prism", rounds=4, **settings)
    fed, outcomes, traffic = federate(method, tmp_path, rounds=3)
    assert all(len(o.replied) == 3 for o in outcomes)
    assert {p.name for p in decode(traffic.requests[-1][1]).parts}.isdisjoint({"full"})
    server, _ = method.start_round(fed.server, list(shares()), Rng((1,)))
    for client in shares():
        held = load_state(tmp_path / f"{client}.safetensors")["state"]
        change = {name: array for name, (_, array) in method.broadcast(server, client, False).parts.items()}
        whole = {name: array for name, (_, array) in method.broadcast(server, client, True).parts.items()}
        assert np.array_equal(method.read(held, change), fed.server["s"])
        assert np.array_equal(method.read({}, whole), fed.server["s"])


@pytest.mark.parametrize(("path", "alpha"), [("backward", 50), ("forward", 30), ("backward", 0), ("forward", 100)])
def test_alpha_counts_real_layers_from_the_end_or_the_start(path, alpha):
    """The 8x8 network has five layers: first, three of a block, last."""
    method = quick("prism", alpha=alpha, score_layers=path)
    sizes = list(method.sizes)
    assert len(sizes) == 5
    n = round(alpha / 100 * 5)
    expected = sum(sizes[5 - n :]) if path == "backward" else sum(sizes[:n])
    assert method.elements == (method.size - expected, expected)
    masked, scored = method.split
    assert scored.start == (0 if path == "forward" else method.size - expected)
    assert masked.stop - masked.start + scored.stop - scored.start == method.size


@pytest.mark.parametrize("form", ["s", "theta"])
def test_score_layers_are_averaged_as_the_paper_says(form, tmp_path):
    method = quick("prism", rounds=1, alpha=100, score_form=form, score_codec="float32")
    fed, _, traffic = federate(method, tmp_path)
    sent = [next(p for p in decode(raw).parts if p.name == "scores").array() for _, raw in traffic.replies]
    mean = np.mean([x.astype(np.float64) for x in sent], axis=0)
    theta = np.clip(mean, method.clamp, 1 - method.clamp)
    expected = np.log(theta / (1 - theta)) if form == "theta" else mean
    assert np.abs(fed.server["s"] / 1024 - expected).max() <= 0.5 / 1024 + 1e-6
    assert set(method.reply_spec()) == {"scores", "metric.loss"}


def test_score_layers_cost_two_or_four_bytes_and_lose_nothing_in_float32(tmp_path):
    for codec, each in (("float16", 2), ("float32", 4)):
        method = quick("prism", rounds=1, alpha=100, score_codec=codec)
        _, (outcome,), _ = federate(method, tmp_path / codec)
        assert each * method.size < outcome.up["client-0"] < each * method.size + 200


def test_noise_is_added_to_theta_and_clipped_before_the_mask_is_drawn():
    method = quick("prism", privacy="paper", noise_multiplier=0.3, theta_clip=0.1, alpha=100, score_form="theta")
    s = torch.linspace(-4, 4, method.size)
    message = ServerMessage(0, {"seed": np.array([7]), "draws": np.array([8]), "stratum": np.array([0, 3])})
    theta = method.upload(s, np.zeros(method.size, np.int16), message, Rng((3,)))["scores"]
    assert theta.min() == pytest.approx(0.1)
    assert theta.max() == pytest.approx(0.9)
    middle = torch.sigmoid(s).numpy()
    inside = (theta > 0.1) & (theta < 0.9) & (np.abs(middle - 0.5) < 0.05)  # noise that clipping hardly touches
    assert np.std(theta[inside] - middle[inside]) > 0.15
    assert method.mechanism.sigma == 0.3
    assert "nothing enforces" in method.mechanism.assumed


def test_klms_uploads_a_tenth_of_a_bit_and_follows_what_was_learned(tmp_path):
    method = quick("prism", rounds=3, coding="klms")
    _, outcomes, traffic = federate(method, tmp_path)
    assert all(len(o.replied) == 3 for o in outcomes), outcomes[0].excluded
    assert 8 * (outcomes[1].up["client-0"] - 150) < 0.1 * method.size
    masks = sent_masks(method, first_state(method), type(traffic)([], traffic.replies[:3]))
    theta = 1 / (1 + np.exp(-first_state(method)["s"] / 1024))
    for mask in masks:
        assert set(np.unique(mask)) == {0, 1}
        assert abs(mask.mean() - theta.mean()) < 0.05
    assert not np.array_equal(masks[0], masks[1])  # each client has draws of its own


@pytest.mark.parametrize("average", ["adam", "none"])
def test_other_averages_train_too(average, tmp_path):
    method = quick("prism", rounds=6, local_steps=8, batch_size=30, moment_averaging=average, ama_lr=0.05)
    _, outcomes, _ = federate(method, tmp_path, holds=shares(each=60))
    assert all(len(o.replied) == 3 for o in outcomes), outcomes[0].excluded
    assert np.isfinite([o.metrics["loss"] for o in outcomes]).all()


def test_gan_loss_trains_a_private_discriminator(tmp_path):
    method = quick("prism", rounds=2, loss="gan")
    _, outcomes, traffic = federate(method, tmp_path)
    assert all(len(o.replied) == 3 for o in outcomes), outcomes[0].excluded
    kept = load_state(tmp_path / "client-0.safetensors")["state"]["loss"]
    assert "net" in kept
    assert {p.name for _, raw in traffic.replies for p in decode(raw).parts} == {"mask", "metric.loss"}


def test_a_mask_costs_one_bit_an_element_and_counts_two_for_three_clients(tmp_path):
    method = quick("prism", rounds=2, coding="packed")
    _, outcomes, _ = federate(method, tmp_path)
    assert -(-method.size // 8) < outcomes[1].up["client-0"] < method.size // 8 + 200
    assert -(-method.size // 4) < outcomes[1].down["client-0"] < method.size // 4 + 200
    assert outcomes[0].down["client-0"] < 200  # the first scores follow from the seed


def test_coding_changes_bytes_and_nothing_else(tmp_path):
    fed, outcomes, _ = federate(quick("prism", rounds=3), tmp_path / "a")
    packed, plain, _ = federate(quick("prism", rounds=3, coding="packed"), tmp_path / "b")
    assert np.array_equal(fed.server["s"], packed.server["s"])
    for t in (1, 2):
        assert outcomes[t].up["client-0"] < 0.7 * plain[t].up["client-0"]
        assert outcomes[t].down["client-0"] < plain[t].down["client-0"]
        assert outcomes[t].floats_up == plain[t].floats_up
        assert outcomes[t].floats_down == plain[t].floats_down
    assert outcomes[1].down["client-0"] < 0.8 * plain[1].down["client-0"]  # θ is coded under the θ before it


def test_uploads_and_counts_are_within_a_hundredth_of_the_ideal(tmp_path):
    method = quick("prism", rounds=3)
    two, *_ = federate(method, tmp_path, rounds=2)
    three, _, traffic = federate(method, tmp_path, rounds=1, fed=two)
    known = levels(two.server["s"])
    total = np.zeros(method.size, int)
    for _, raw in traffic.replies:
        coded = next(p for p in decode(raw).parts if p.name == "mask").array()
        mask = method.decode_mask(two.server, coded)
        assert len(coded) <= 1.01 * ideal_bytes(mask, known, 2) + 16
        total += mask
    assert len(three.server["counts"]) <= 1.01 * ideal_bytes(total, levels(two.server["s"], 4), 4) + 32


def test_a_late_joiner_gets_all_counts_and_one_that_holds_others_asks_for_them(tmp_path):
    method = quick("prism", rounds=4)
    few, all_ = shares(2), shares(3)
    fed, *_ = federate(method, tmp_path, rounds=2, holds=few)
    _, _, traffic = federate(method, tmp_path, rounds=1, holds=all_, fed=fed)
    named = {client: {p.name for p in decode(raw).parts} for client, raw in traffic.requests}
    assert "counts" in named["client-0"]
    assert "full" in named["client-2"]

    away, _, _ = federate(method, tmp_path / "x", rounds=2)
    (tmp_path / "x" / "client-1.safetensors").unlink()  # it lost what it held
    _, (outcome,), traffic = federate(method, tmp_path / "x", rounds=1, fed=away)
    asked = [{p.name for p in decode(raw).parts} for client, raw in traffic.requests if client == "client-1"]
    assert ["counts" in asked[0], "full" in asked[1]] == [True, True]
    assert outcome.replied == ["client-0", "client-1", "client-2"]


def upload(method, k, of, theta, round_=0):
    message = ServerMessage(round_, {"draws": np.array([7], np.uint64), "stratum": np.array([k, of])})
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
    model = method.export_models(fed.server)["generator"]
    generator = open_model(model, tuple("0123456789"))
    weights = torch.cat([p.flatten() for p in generator.net.parameters()])
    mask = torch.from_numpy(fed.server["s"]) > 0
    assert weights.equal(Masked(build("small", (1, 8, 8), 10), fed.server["seed"]).W * mask)
    assert set(model.tree) == {"generator", "width", "shape", "classes", "seed", "mask"}
    assert model.tree["mask"].nbytes <= method.size // 8 + 2


def test_training_lowers_the_loss(tmp_path):
    method = quick("prism", rounds=6, local_steps=8, batch_size=30)
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
