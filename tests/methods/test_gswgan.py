"""GS-WGAN: critics, sanitized gradients, and the turns of clients."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from tests.federation import digits, federate, quick, same, shares
from vitrail.methods import gswgan
from vitrail.methods.base import ServerMessage, Sums
from vitrail.nets.flat import from_vector, to_vector
from vitrail.privacy.accounting import second_opinion
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.wire.message import decode

EXACT = {"fake_dtype": "float32"}
PRIVATE = {"privacy": "gradient", "epsilon": 9.8}


def pool(method, seed=1):
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(method.sent, *method.task.shape, generator=draw) * 2 - 1
    return {"x_fake": x.numpy(), "y_fake": torch.randint(10, (method.sent,), generator=draw).numpy()}


def larger(method):
    """Return the method with images large enough for a critic with normalization."""
    return replace(method, task=replace(method.task, shape=(1, 16, 16)))


def random_images(n, seed=1, size=16):
    pixels = np.random.default_rng(seed).integers(0, 256, (n, 1, size, size), np.uint8)
    return replace(digits().train.take(np.arange(n)), pixels=pixels)


def test_the_returned_gradient_equals_wgan_gp_in_plain_torch():
    method = larger(quick("gswgan", d_steps=3, lr=0.01, **EXACT))
    state, parts, data = method.client_init("a", Rng((3,))), pool(method), random_images(40)
    after, reply = method.client_round(state, ServerMessage(0, parts), data, Rng((2,)))

    D = from_vector(method.critic(), state["critic"])
    opt = torch.optim.Adam(D.parameters(), 0.01, (0.5, 0.9))
    pick = Rng((2,)).child("real").numpy()
    x, y = torch.from_numpy(parts["x_fake"]), torch.from_numpy(parts["y_fake"])
    for _ in range(3):
        i, j = pick.choice(40, 8, replace=False), pick.choice(16, 8, replace=False)
        e = torch.from_numpy(pick.random((8, 1, 1, 1), np.float32))
        real, y_r = torch.from_numpy(data.pixels[i]).float() / 127.5 - 1, torch.from_numpy(data.labels[i])
        mid = (e * real + (1 - e) * x[j]).requires_grad_()
        norms = torch.autograd.grad(D(mid, y_r).sum(), mid, create_graph=True)[0].flatten(1).norm(dim=1)
        opt.zero_grad()
        (D(x[j], y[j]).mean() - D(real, y_r).mean() + 10 * ((norms - 1) ** 2).mean()).backward()
        opt.step()
    fake = x[:8].clone().requires_grad_()
    (-D(fake, y[:8])).sum().backward()
    assert np.allclose(reply.parts["gradient"], fake.grad.numpy().ravel(), rtol=1e-3, atol=1e-6)
    assert np.allclose(after["critic"], to_vector(D), rtol=1e-3, atol=1e-6)


def test_the_servers_step_equals_adam_on_the_mean_critic_in_one_graph(tmp_path):
    method = quick("gswgan", rounds=1, **EXACT)
    begin = method.server_init(Rng((5,)).child("server", "init"))
    fed, _, traffic = federate(method, tmp_path)
    started, _ = method.start_round(begin, sorted(shares()), Rng((5,)).child("server", 0, "open"))
    replies = [p.array() for _, r in traffic.replies for p in decode(r).parts if p.name == "gradient"]

    G = from_vector(method.generator(), begin["generator"]).train()
    opt = torch.optim.Adam(G.parameters(), method.lr, (0.5, 0.9))
    fake = G(*method.noise(started["seed"]))[:8]
    linear = sum((torch.from_numpy(a.copy()).view_as(fake) * fake).sum() for a in replies) / (3 * 8)
    linear.backward()
    opt.step()
    assert np.allclose(fed.server["generator"], to_vector(G), atol=1e-6)


def test_critics_are_never_sent(tmp_path):
    for name, parts in (("gswgan", {"gradient", "metric.loss_g", "metric.loss_d"}), ("gswgan, gradient", {"gradient"})):
        _, _, traffic = federate(quick(name), tmp_path / name)
        assert all({p.name for p in decode(r).parts} == parts for _, r in traffic.replies)
        assert all({p.name for p in decode(r).parts} == {"x_fake", "y_fake"} for _, r in traffic.requests)


# -- Turns ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("selected", "rounds", "turns"), [(1, 7, [3, 2, 2]), (2, 3, [2, 2, 2]), (3, 4, [4, 4, 4])])
def test_turns_are_distributed_evenly_and_noise_is_calibrated_to_them(tmp_path, selected, rounds, turns):
    method = quick("gswgan, gradient", rounds=rounds, active_clients=selected)
    fed, results, _ = federate(method, tmp_path)
    assert all(len(o.replied) == selected for o in results)
    assert [fed.server["turns"][c] for c in sorted(shares())] == turns
    assert method.max_replies == max(turns)
    assert method.spent(method.max_replies) == pytest.approx(9.8, abs=1e-3)


def test_no_client_is_selected_more_often_than_max_replies():
    """Two of three clients have images: they do not take the turns of the third."""
    method = quick("gswgan, gradient", rounds=6, active_clients=1)
    server, selected = method.server_init(Rng((1,))), []
    for t in range(6):
        server, who = method.start_round(server, ["a", "b"], Rng((2, t)))
        selected += who
        before = server["generator"]
        server = method.finish_round(server, Sums({"gradient": np.ones(8 * 64)}, 1) if who else Sums({}, 0), Rng((3,)))
        assert same(server["generator"], before) == (not who)
    assert selected == ["a", "b", "a", "b"]
    plain = quick("gswgan", rounds=6, active_clients=1)
    server, who = plain.start_round({**plain.server_init(Rng((1,))), "turns": {"a": 9, "b": 9}}, ["a", "b"], Rng((2,)))
    assert who == ["a"]  # without noise turns are not limited


# -- Privacy --------------------------------------------------------------------------------------------------------


def reply_gradient(method, state, data, rng=2, seed=1):
    return method.client_round(state, ServerMessage(0, pool(method, seed)), data, Rng((rng,)))[1].parts["gradient"]


def rivals():
    """Yield datasets that differ as much as possible."""
    for n in (1, 30):
        yield random_images(n, size=8)
        black = random_images(n, size=8)
        yield replace(black, pixels=np.zeros_like(black.pixels))
        yield replace(black, pixels=np.full_like(black.pixels, 255))
        yield replace(black, labels=np.full_like(black.labels, 3))
    yield digits().train.take(np.arange(24))


@pytest.mark.parametrize("clip", [1.0, 0.01])
def test_no_tried_pair_of_datasets_moves_a_reply_beyond_the_sensitivity(monkeypatch, clip):
    """For any data of the client and any weights of its critic."""
    monkeypatch.setattr(gswgan, "noised", lambda v, *_: v)
    method, most = quick("gswgan", **PRIVATE, max_grad_norm=clip, lr=0.05, **EXACT), 0.0
    first = method.client_init("a", Rng((3,)))
    critics = [{**first, "critic": first["critic"] * by} for by in (1, -1, 1e3, 1e18, 0)]
    critics += [{**first, "critic": np.r_[1e3 * first["critic"][:-65], -1e3 * first["critic"][-65:]]}]  # the opposite
    replies = [reply_gradient(method, critic, data) for critic in critics for data in rivals()]
    for a in replies:
        assert np.linalg.norm(a.reshape(8, -1), axis=1).max() <= clip
        for b in replies:
            assert np.linalg.norm(a - b) <= method.mechanism.sensitivity
            most = max(most, float(np.linalg.norm(a - b)))
    assert method.mechanism.sensitivity == 2 * clip * math.sqrt(8)
    assert most > 0.95 * method.mechanism.sensitivity  # the search comes close to the bound


@pytest.mark.parametrize("multiplier", [0.05, 5.0])
def test_the_released_gradient_has_noise_of_the_stated_sigma(monkeypatch, multiplier):
    method = quick("gswgan", privacy="gradient", noise_multiplier=multiplier, batch_size=400, num_fakes=400, **EXACT)
    state, data = method.client_init("a", Rng((3,))), digits().train.take(np.arange(24))
    released = reply_gradient(method, state, data)
    monkeypatch.setattr(gswgan, "noised", lambda v, *_: v)
    noise = released - reply_gradient(method, state, data)
    sigma = multiplier * 2 * 1.0 * math.sqrt(400)
    assert method.mechanism.sigma == pytest.approx(sigma)
    assert kstest(noise / sigma, "norm").pvalue > 1e-4


def test_values_beyond_the_limit_are_clipped_after_the_noise(tmp_path):
    method = quick("gswgan", privacy="gradient", noise_multiplier=1e5, rounds=1, wire_dtype="float16")
    _, results, traffic = federate(method, tmp_path)
    assert len(results[0].replied) == 3
    sent = next(p.array() for p in decode(traffic.replies[0][1]).parts)
    assert np.abs(sent).max() == gswgan.LIMIT


def test_epsilon_is_the_requested_one_and_opacus_agrees():
    method = quick("gswgan", rounds=30, clients=10, active_clients=1, **PRIVATE)
    assert method.max_replies == 3
    assert method.spent(3) == pytest.approx(9.8, abs=1e-3)
    assert method.spent(4) > 10.5
    _, other = second_opinion([(method.mechanism.noise, 3)], method.delta)
    assert other == pytest.approx(method.spent(3), rel=0.01)


def test_without_a_mechanism_there_is_no_epsilon():
    with pytest.raises(VitrailError, match="adds no noise"):
        quick("gswgan", epsilon=3.0).mechanism  # noqa: B018


def test_in_deployment_noise_is_not_repeatable(monkeypatch):
    method = quick("gswgan", **PRIVATE)
    state, data = method.client_init("a", Rng((3,))), digits().train.take(np.arange(24))
    assert np.array_equal(reply_gradient(method, state, data), reply_gradient(method, state, data))
    method = replace(method, task=replace(method.task, noise_source="os"))
    assert not np.array_equal(reply_gradient(method, state, data), reply_gradient(method, state, data))
