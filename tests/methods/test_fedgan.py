"""The federated GAN: averaging, synchronization, and its privacy mechanisms."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from tests.federation import digits, federate, gan_answer, quick, rivals, same
from vitrail.engines.replies import Failure
from vitrail.methods.base import ServerMessage, Sums
from vitrail.methods.fedgan import IMAGES_PER_WEIGHT
from vitrail.models.model_file import open_model
from vitrail.nets.flat import from_vector, to_vector, trainable_mask
from vitrail.privacy import dpsgd
from vitrail.privacy.accounting import second_opinion
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import load
from vitrail.wire.message import decode

SYNCS = {"d&g": {"generator", "discriminator"}, "g": {"generator"}, "d": {"discriminator"}, "none": set()}


def sent(data):
    return {p.name: p.array() for p in decode(data).parts}


@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_the_server_averages_by_number_of_images_or_uniformly(tmp_path, weights):
    method = quick("fedgan", rounds=1, weighting=weights)
    indices = {"a": np.arange(16), "b": np.arange(16, 64)}
    fed, _, traffic = federate(method, tmp_path, indices=indices)
    count = {"a": 16 / IMAGES_PER_WEIGHT, "b": 48 / IMAGES_PER_WEIGHT} if weights == "examples" else {"a": 1, "b": 1}
    for name in ("generator", "discriminator"):
        own = {c: load(tmp_path / f"{c}.safetensors")["state"][name].astype(np.float64) for c in indices}
        mean = sum(count[c] * own[c] for c in indices) / sum(count.values())
        assert np.allclose(fed.server[name], mean, rtol=1e-5, atol=1e-7)
    assert {c: sent(r)["weight"][0] for c, r in traffic.replies} == pytest.approx(count)


@pytest.mark.parametrize("sync", SYNCS)
def test_clients_are_sent_only_the_synchronized_networks(tmp_path, sync):
    method = quick("fedgan", rounds=2, sync=sync)
    _, _, traffic = federate(method, tmp_path)
    first, second = traffic.requests[0][1], traffic.requests[-1][1]
    assert set(sent(first)) == {"generator", "discriminator"}  # all clients start from the same networks
    assert set(sent(second)) == SYNCS[sync]
    assert all(set(sent(r)) >= {"generator", "discriminator"} for _, r in traffic.replies)


def test_without_synchronization_a_client_trains_as_if_alone(tmp_path):
    method = quick("fedgan", rounds=3, sync="none")
    federate(method, tmp_path / "three")
    federate(method, tmp_path / "one", indices={"client-0": np.arange(24)})
    a, b = (load(tmp_path / f / "client-0.safetensors")["state"] for f in ("three", "one"))
    assert same(a, b)


def test_upload_synced_sends_only_the_synchronized_networks(tmp_path):
    method = quick("fedgan", rounds=2, sync="g", upload="synced")
    fed, results, traffic = federate(method, tmp_path)
    assert all("discriminator" not in sent(r) for _, r in traffic.replies)
    both = federate(quick("fedgan", rounds=2, sync="g"), tmp_path / "both")
    assert sum(results[1].up.values()) < 0.8 * sum(both[1][1].up.values())
    assert same(fed.server["generator"], both[0].server["generator"])


def test_a_late_client_starts_from_the_initial_networks(tmp_path):
    method = quick("fedgan", rounds=3, sync="none")
    late = lambda t, c, d: Failure("asleep") if (t, c) == (0, "client-2") else d  # noqa: E731
    fed, _, traffic = federate(method, tmp_path, rounds=2, spoil=late)
    requests = [sent(r) for c, r in traffic.requests if c == "client-2"]
    assert same(requests[1], requests[0])
    assert not same(requests[1]["generator"], fed.server["generator"])


def test_a_client_that_lost_its_state_is_sent_both_networks(tmp_path):
    method = quick("fedgan", rounds=2, sync="g")
    fed, *_ = federate(method, tmp_path, rounds=1)
    (tmp_path / "client-1.safetensors").unlink()
    _, results, traffic = federate(method, tmp_path, rounds=1, fed=fed)
    assert sorted(results[0].replied) == ["client-0", "client-1", "client-2"]
    requests = [set(sent(r)) for c, r in traffic.requests if c == "client-1"]
    assert requests == [{"generator"}, {"generator", "discriminator"}]


def test_a_step_equals_equations_2_and_3_in_plain_torch(tmp_path):
    """One batch, one epoch, repeated with the same random draws."""
    method = quick("fedgan", batch_size=16)
    server = method.server_init(Rng((1,)))
    data, rng = digits().train.take(np.arange(16)), Rng((2,))
    parts = {n: server[n] for n in ("generator", "discriminator")}
    state, _ = method.client_round({}, ServerMessage(0, parts), data, rng)

    nets = method.nets()
    G, D = (from_vector(nets[n], server[n]).train() for n in ("generator", "discriminator"))
    order = rng.child("order").numpy().permutation(16)
    draw = rng.child("training").torch()
    x, y = torch.from_numpy(data.pixels[order]).float() / 127.5 - 1, torch.from_numpy(data.labels[order])
    z, y_fake = torch.randn(16, 8, generator=draw), torch.randint(10, (16,), generator=draw)
    opt_d, opt_g = (torch.optim.Adam(n.parameters(), 2e-4, (0.5, 0.999)) for n in (D, G))
    fake = G(z, y_fake)
    sigmoid = torch.sigmoid
    value = torch.log(sigmoid(D(x, y))).mean() + torch.log(1 - sigmoid(D(fake.detach(), y_fake))).mean()
    opt_d.zero_grad()
    (-value).backward()  # Eq. 2: D ascends
    opt_d.step()
    opt_g.zero_grad()
    (-torch.log(sigmoid(D(fake, y_fake))).mean()).backward()  # Eq. 3, non-saturating
    opt_g.step()
    assert np.allclose(state["generator"], to_vector(G), atol=1e-5)
    assert np.allclose(state["discriminator"], to_vector(D), atol=1e-5)


def test_float16_halves_the_bytes(tmp_path):
    full = federate(quick("fedgan", rounds=1), tmp_path / "a")[1][0]
    half = federate(quick("fedgan", rounds=1, wire_dtype="float16"), tmp_path / "b")[1][0]
    assert half.up["client-0"] < 0.52 * full.up["client-0"]
    assert half.down["client-0"] < 0.52 * full.down["client-0"]


# -- Privacy --------------------------------------------------------------------------------------------------------

NAMES = ("generator", "discriminator")


@pytest.mark.parametrize("name", ["fedgan, dp-sgd", "fedgan, dp-fedavg"])
def test_with_privacy_neither_losses_nor_the_number_of_images_are_sent(tmp_path, name):
    method = quick(name)
    _, results, traffic = federate(method, tmp_path)
    assert all(set(sent(r)) == {"generator", "discriminator"} for _, r in traffic.replies)
    assert set(method.reply_spec()) == {"generator", "discriminator"}
    assert all(len(o.replied) == 3 and not o.metrics for o in results)
    few, many = (digits().train.take(np.arange(n)) for n in (2, 40))
    assert {n: a.shape for n, a in gan_answer(method, few).items()} == {
        n: a.shape for n, a in gan_answer(method, many).items()
    }


def test_dp_sgd_uses_images_only_through_noised_sums(monkeypatch):
    """If these sums are zero, clients with different images send the same."""
    method = quick("fedgan, dp-sgd")
    assert not same(*(gan_answer(method, data) for data in list(rivals())[:2]))
    monkeypatch.setattr(dpsgd, "private_sum", lambda net, *_: torch.zeros(sum(p.numel() for p in net.parameters())))
    first, *others = (gan_answer(method, data) for data in rivals())
    assert all(same(first, other) for other in others)


def test_without_noise_or_clipping_a_private_step_equals_a_plain_one():
    """All images drawn, a bound that is never reached, almost no noise: a plain step of D, and then of G."""
    loose = {
        "sample_rate": 1.0,
        "max_grad_norm": 1e4,
        "noise_multiplier": 1e-9,
        "dp_steps": 1,
        "d_steps": 1,
        "batch_size": 16,
    }
    method = quick("fedgan", privacy="dp-sgd", lr=0.01, **loose)
    method = replace(method, task=replace(method.task, shape=(1, 16, 16)))  # large enough for GroupNorm
    draw = np.random.default_rng(1)
    pixels = draw.integers(0, 256, (16, 1, 16, 16), np.uint8)
    data = replace(digits().train.take(np.arange(16)), pixels=pixels)
    server = method.server_init(Rng((1,)))
    received = gan_answer(method, data, server)

    nets = method.nets()
    G, D = (from_vector(nets[n], server[n]).train() for n in NAMES)
    opt_g, opt_d = (torch.optim.Adam(n.parameters(), 0.01, (0.5, 0.999)) for n in (G, D))
    rng = Rng((2,)).child("training").torch()
    noise = lambda: (torch.randn(16, 8, generator=rng), torch.randint(10, (16,), generator=rng))  # noqa: E731
    (z, y_fake), x, y = noise(), torch.from_numpy(pixels).float() / 127.5 - 1, torch.from_numpy(data.labels)
    log = torch.nn.functional.logsigmoid
    (-log(D(x, y)).mean() - log(-D(G(z, y_fake).detach(), y_fake)).mean()).backward()
    opt_d.step()
    z, y_fake = noise()
    (-log(D(G(z, y_fake), y_fake)).mean()).backward()
    opt_g.step()
    for name, net in zip(NAMES, (G, D), strict=True):
        moved = to_vector(net) - server[name]
        assert np.linalg.norm(received[name] - to_vector(net)) < 0.02 * np.linalg.norm(moved)


def test_more_noise_moves_d_further_from_the_plain_result():
    method = lambda m: quick("fedgan, dp-sgd", noise_multiplier=m, lr=1e-3)  # noqa: E731
    data = digits().train.take(np.arange(30))
    plain, little, much = (gan_answer(method(m), data)["discriminator"] for m in (1e-6, 0.05, 50.0))
    assert 0 < np.linalg.norm(little - plain) < np.linalg.norm(much - plain)


def test_a_step_without_drawn_images_does_not_depend_on_them():
    method = quick("fedgan, dp-sgd", sample_rate=1e-9)
    data = digits().train.take(np.arange(30))
    assert same(gan_answer(method, data), gan_answer(method, replace(data, pixels=255 - data.pixels)))


def test_dp_sgd_refuses_a_discriminator_with_batch_norm():
    method = quick("fedgan, dp-sgd", d_norm="batch")
    large = replace(method, task=replace(method.task, shape=(1, 16, 16)))
    with pytest.raises(VitrailError, match="d_norm=group"):
        large.reply_spec()


@pytest.mark.parametrize("wire", ["float32", "float16"])
def test_no_tried_pair_of_datasets_moves_the_sum_beyond_the_sensitivity(wire):
    method, most = quick("fedgan, dp-fedavg", max_grad_norm=0.05, lr=0.1, wire_dtype=wire), 0.0
    server = method.server_init(Rng((1,)))
    starts = [{n: server[n] * np.float32(by) for n in NAMES} for by in (1, -1, 50, 1e15)]
    found = [gan_answer(method, data, start) for start in starts for data in rivals()]
    updates = [np.concatenate([parts[n].astype(float) for n in NAMES]) for parts in found]
    for a in updates:
        assert np.linalg.norm(a) <= 0.05
        most = max(most, *(float(np.linalg.norm(a - b)) for b in updates))
    assert most <= method.mechanism.sensitivity == 0.1
    assert most > 0.06  # more than one clipped update could do


@pytest.mark.parametrize("multiplier", [0.05, 20.0])
def test_networks_move_with_noise_of_the_stated_sigma(multiplier):
    method = quick("fedgan", privacy="dp-fedavg", noise_multiplier=multiplier, max_grad_norm=0.5)
    server, declared = method.server_init(Rng((1,))), method.reply_spec()
    sums = Sums({n: np.full(declared[n].size, 0.1) for n in NAMES}, 4)
    after, noise = method.finish_round(server, sums, Rng((2,))), []
    for name, net in method.nets().items():
        weights = trainable_mask(net)
        assert weights.sum() == declared[name].size
        noise.append(4 * (after[name].astype(float) - server[name])[weights] - 0.1)
    assert method.mechanism.sigma == multiplier
    assert kstest(np.concatenate(noise) / multiplier, "norm").pvalue > 1e-4
    x = open_model(method.export_models(after)["generator"], tuple("0123456789")).sample(20)
    assert x.isfinite().all()


@pytest.mark.parametrize("sync", SYNCS)
def test_dp_fedavg_requires_a_synchronized_generator(tmp_path, sync):
    method = quick("fedgan, dp-fedavg", sync=sync, rounds=1)
    if sync in ("d", "none"):
        with pytest.raises(VitrailError, match="use sync=d&g or sync=g"):
            method.reply_spec()
    else:
        _, _, traffic = federate(method, tmp_path)
        assert all(set(sent(r)) == SYNCS[sync] for _, r in traffic.replies)


def test_epsilon_is_the_requested_one_and_opacus_agrees():
    average = quick("fedgan, dp-fedavg", rounds=20)
    assert average.spent(20) == pytest.approx(9.8, abs=1e-3)
    whole = quick("fedgan", privacy="dp-sgd", epsilon=4.0, sample_rate=1.0, dp_steps=5, rounds=3)
    assert whole.spent(3) == pytest.approx(4.0, abs=1e-3)  # 15 steps
    drawn = quick("fedgan", privacy="dp-sgd", noise_multiplier=2.0, sample_rate=0.1, dp_steps=4, rounds=3)
    for method, answers in ((average, 20), (whole, 3), (drawn, 3)):
        _, other = second_opinion([(method.mechanism.noise, answers)], method.delta)
        assert other == pytest.approx(method.spent(answers), rel=0.01)
    assert drawn.spent(3) < 0.25 * replace(drawn, sample_rate=1.0).spent(3)


def test_epsilon_does_not_depend_on_the_number_of_images():
    """ε is computed from the public sampling rate."""
    method = quick("fedgan, dp-sgd")
    assert (method.mechanism.unit, method.mechanism.noise.rate) == ("example", 0.3)
    assert method.mechanism.sigma == method.noise_multiplier * method.max_grad_norm
