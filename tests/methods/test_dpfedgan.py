"""DP-FedAvg-GAN: clients train D, the server noises the sum of their updates and trains G."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import kstest

from tests.federation import digits, federate, gan_answer, quick, rivals, same
from vitrail.methods.base import Sums
from vitrail.nets.flat import from_vector, to_vector
from vitrail.privacy.accounting import second_opinion
from vitrail.utils.rng import Rng
from vitrail.wire.message import decode

NAMES = ("generator", "discriminator")


def sent(data):
    return {p.name: p.array() for p in decode(data).parts}


def test_a_clients_update_of_d_equals_plain_torch():
    method = quick("dpfedgan")
    server, data, rng = method.server_init(Rng((1,))), digits().train.take(np.arange(16)), Rng((2,))
    received = gan_answer(method, data, server)["discriminator"]
    D, G = (
        from_vector(net, server[n])
        for n, net in zip(NAMES[::-1], (method.discriminator(), method.generator()), strict=True)
    )
    order, draw = rng.child("order").numpy().permutation(16), rng.child("training").torch()
    x, y = torch.from_numpy(data.pixels[order]).float() / 127.5 - 1, torch.from_numpy(data.labels[order])
    z, y_fake = torch.randn(16, 8, generator=draw), torch.randint(10, (16,), generator=draw)
    opt = torch.optim.Adam(D.parameters(), 2e-4, (0.5, 0.999))
    p, q = torch.sigmoid(D(x, y)), torch.sigmoid(D(G(z, y_fake).detach(), y_fake))
    (-torch.log(p).mean() - torch.log(1 - q).mean()).backward()
    opt.step()
    assert np.allclose(received, to_vector(D) - server["discriminator"], atol=1e-6)


def test_the_server_adds_the_mean_update_to_d_and_trains_g_against_it(tmp_path):
    method = quick("dpfedgan", rounds=1, g_steps=1)
    begin = method.server_init(Rng((5,)).child("server", "init"))
    fed, _, traffic = federate(method, tmp_path)
    mean = np.mean([sent(r)["discriminator"].astype(float) for _, r in traffic.replies], 0)
    assert np.allclose(fed.server["discriminator"], begin["discriminator"] + mean, atol=1e-6)

    D = from_vector(method.discriminator(), fed.server["discriminator"])
    G = from_vector(method.generator(), begin["generator"]).train()
    draw = Rng((5,)).child("server", 0, "close", "generator").torch()
    z, y = torch.randn(16, 8, generator=draw), torch.randint(10, (16,), generator=draw)
    opt = torch.optim.Adam(G.parameters(), 2e-4, (0.5, 0.999))
    (-F.logsigmoid(D(G(z, y), y)).mean()).backward()
    opt.step()
    assert np.allclose(fed.server["generator"], to_vector(G), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "leaves"), [("dpfedgan", {"discriminator", "metric.loss_d"}), ("dpfedgan, dp-fedavg", {"discriminator"})]
)
def test_generators_are_never_sent_and_with_privacy_no_losses(tmp_path, name, leaves):
    _, results, traffic = federate(quick(name), tmp_path)
    assert all(set(sent(r)) == leaves for _, r in traffic.replies)
    assert ("loss_d" in results[0].metrics) == (len(leaves) == 2)


@pytest.mark.parametrize("wire", ["float32", "float16"])
def test_no_tried_pair_of_datasets_moves_the_sum_beyond_the_sensitivity(wire):
    method, most = quick("dpfedgan, dp-fedavg", max_update_norm=0.05, lr=0.1, wire_dtype=wire), 0.0
    server = method.server_init(Rng((1,)))
    starts = [{**server, "discriminator": server["discriminator"] * by} for by in (1, -1, 50, 1e15)]
    updates = [gan_answer(method, data, start)["discriminator"].astype(float) for start in starts for data in rivals()]
    for a in updates:
        assert np.linalg.norm(a) <= 0.05
        most = max(most, *(float(np.linalg.norm(a - b)) for b in updates))
    assert most <= method.mechanism.sensitivity == 0.1
    assert most > 0.06  # more than one clipped update could do


@pytest.mark.parametrize("multiplier", [0.05, 20.0])
def test_the_discriminator_moves_with_noise_of_the_stated_sigma(multiplier):
    method = quick("dpfedgan", privacy="dp-fedavg", noise_multiplier=multiplier, max_update_norm=0.5, width=16)
    server = method.server_init(Rng((1,)))
    total = np.linspace(-0.4, 0.4, server["discriminator"].size)
    after = method.finish_round(server, Sums({"discriminator": total}, 4), Rng((2,)))["discriminator"]
    noise = 4 * (after.astype(float) - server["discriminator"]) - total
    assert method.mechanism.sigma == multiplier * 2 * 0.5
    assert kstest(noise / method.mechanism.sigma, "norm").pvalue > 1e-4
    other = method.finish_round(server, Sums({"discriminator": total}, 4), Rng((3,)))["discriminator"]
    assert not same(after, other)


def test_epsilon_is_the_requested_one_and_opacus_agrees():
    method = quick("dpfedgan, dp-fedavg", rounds=20)
    assert method.spent(20) == pytest.approx(9.8, abs=1e-3)
    _, other = second_opinion([(method.mechanism.noise, 20)], method.delta)
    assert other == pytest.approx(9.8, rel=0.01)
    assert (method.mechanism.unit, method.mechanism.adjacency) == ("client", "replace one")
    assert "server" in method.mechanism.trust


def test_a_client_whose_training_diverges_sends_a_bounded_update():
    method = quick("dpfedgan, dp-fedavg")
    server = method.server_init(Rng((1,)))
    broken = {**server, "discriminator": np.full_like(server["discriminator"], 3e38)}
    received = gan_answer(method, digits().train.take(np.arange(20)), broken)["discriminator"]
    assert math.isfinite(float(np.abs(received).max()))
    assert np.linalg.norm(received.astype(float)) <= method.max_update_norm
