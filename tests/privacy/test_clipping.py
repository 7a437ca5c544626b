"""NaN, infinite and huge numbers: what leaves stays within the sensitivity, and all of it is noised."""

import copy
import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn

from tests.federation import PRIVATE, digits, federate, quick, rivals
from vitrail.engines.flower.descriptions import RunSpec
from vitrail.experiment import settings as config
from vitrail.experiment.deployment.specs import resolved_settings
from vitrail.experiment.validation import BadSettings
from vitrail.methods import METHODS
from vitrail.methods.base import ServerMessage
from vitrail.methods.prism import mechanisms as prism_privacy
from vitrail.methods.released_sums import load_public_features
from vitrail.nets.dcgan import DcganDiscriminator
from vitrail.privacy import dpsgd
from vitrail.privacy.clipping import clipped, clipped_rows, noised
from vitrail.privacy.dpfedavg import clip_update
from vitrail.privacy.feature_sums import Summary, class_sums, sensitivity
from vitrail.privacy.noise import discrete_gaussian, gaussian, seeded
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.wire import scores

BAD = [math.nan, math.inf, -math.inf]
MASKS = {"privacy": "mask-update", "noise_multiplier": 1.0}


def without_noise(monkeypatch):
    monkeypatch.setattr(prism_privacy, "gaussian", lambda source, n, sigma: np.zeros(n))


def thetas(size):
    """Results of failed training: no element, one or all of them not finite, or out of range."""
    some = torch.from_numpy(np.random.default_rng(1).random(size)).float()
    yield from (some, torch.zeros(size), torch.ones(size), some + 1e30, some - 3e38)
    for bad in BAD:
        yield torch.full((size,), bad)
        yield torch.cat([some[:-1], torch.tensor([bad])])


# -- PRISM's masks ------------------------------------------------------------------------------------------------------


def test_no_theta_changes_what_leaves_by_more_than_the_sensitivity(monkeypatch):
    without_noise(monkeypatch)
    method = quick("prism", max_update_norm=0.7, theta_clip=1e-6, **MASKS)
    s_t = scores.first(3, method.size, "normal", 1.0)
    theta_t = torch.from_numpy(scores.theta(s_t))
    out = [prism_privacy.noised_theta(method, t, s_t, seeded(Rng((1,)))).double() for t in thetas(method.size)]
    assert all(o.isfinite().all() for o in out)
    assert max(float((o - theta_t).norm()) for o in out) <= 0.7 + 1e-4
    assert max(float((a - b).norm()) for a in out for b in out) <= method.mechanism.sensitivity + 1e-4


@pytest.mark.parametrize("privacy", ["mask-update", "paper"])
@pytest.mark.parametrize("bad", BAD)
def test_every_element_of_theta_is_noised_even_if_training_failed(privacy, bad):
    method = quick(
        "prism", privacy=privacy, noise_multiplier=0.01, max_update_norm=0.5, epsilon=50 if privacy == "paper" else None
    )
    s_t = np.zeros(method.size, np.int16)  # θ_t = 1/2, far from the clip
    theta = torch.full((method.size,), 0.5)
    theta[::3] = bad
    a, b = (prism_privacy.noised_theta(method, theta, s_t, seeded(Rng((k,)))) for k in (1, 2))
    assert a.isfinite().all()
    assert (a != 0.5).all()
    assert (a != b).all()
    assert float((a - 0.5).std()) == pytest.approx(method.mechanism.sigma, rel=0.05)


def masks(method, data, n=6):
    """The masks of n first rounds."""
    server = {**method.server_init(Rng((1,))), "draws": 7, "who": ["a"]}
    sent = {name: array for name, (_, array) in method.broadcast(server, "a", True).parts.items()}
    unpack = method.reply_spec()["mask"].unpack
    for k in range(n):
        _, reply = method.client_round({}, ServerMessage(0, sent), data, Rng((k,)))
        assert set(reply.parts) == {"mask"}
        yield unpack(server, reply.parts["mask"])


def test_masks_do_not_reveal_missing_labels_at_any_learning_rate():
    """A step of 1e39 gives NaN where there is no gradient; masks of these elements would always be zero."""
    method = replace(quick("prism", score_std=0.5, sampling="independent", **MASKS), lr=1e39)
    threes = digits().train.take(np.flatnonzero(digits().train.labels == 3)[:12])
    never = ~np.any(list(masks(method, threes)), axis=0)
    assert never.mean() < 0.05


def test_a_client_whose_training_fails_replies_in_every_round(tmp_path):
    method = replace(quick("prism", rounds=2, **MASKS), lr=1e39)
    _, outcomes, _ = federate(method, tmp_path, indices={"client-0": np.arange(12)})
    assert [o.replied for o in outcomes] == [["client-0"], ["client-0"]]


# -- DP-SGD -------------------------------------------------------------------------------------------------------------


def network(scale=0.3, kind="dcgan"):
    net = DcganDiscriminator((1, 16, 16), 10, 8, "group")
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    return net.train()


def examples(n):
    draw = torch.Generator().manual_seed(2)
    return torch.randn(n, 1, 16, 16, generator=draw), torch.randint(10, (n,), generator=draw)


def loss(net, x, y):
    return nn.functional.softplus(-net(x, y))


@pytest.mark.parametrize("how", ["hooks", "func"])
@pytest.mark.parametrize("bad", [*BAD, 3e38, -3e38])
def test_an_example_whose_gradient_is_not_finite_counts_as_zero(how, bad):
    net, (x, y) = network(), examples(7)
    clean = dpsgd.clipped_sum(net, loss, (x, y), 1.0, how)
    changed = x.clone()
    changed[3] = bad
    found = dpsgd.clipped_sum(net, loss, (changed, y), 1.0, how)
    others = [i for i in range(7) if i != 3]
    without = dpsgd.clipped_sum(net, loss, (x[others], y[others]), 1.0, how)
    assert found.isfinite().all()
    assert float((found - without).norm()) <= 1.0
    assert float((found - clean).norm()) <= 2.0
    if not math.isfinite(bad):
        assert torch.allclose(found, without, atol=1e-5)


@pytest.mark.parametrize("clip", [1e-6, 1.0, 1e4])
def test_a_gradient_of_any_size_is_clipped_to_the_norm(clip):
    """Its scale may be a number with few bits in single precision."""

    class Linear(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(4))

        def forward(self, x):
            return x @ self.w

    net = Linear()
    for size in np.geomspace(1e-3, 1.6e38, 400):
        x = torch.full((1, 4), float(size), dtype=torch.float32)
        found = dpsgd.clipped_sum(net, lambda net, x: net(x), (x,), clip, "func")
        assert float(found.norm()) <= clip


@pytest.mark.parametrize("weights", [math.nan, math.inf, 1e38])
def test_weights_that_overflow_all_gradients_give_only_noise(weights):
    net, source = network(), seeded(Rng((3,)))
    with torch.no_grad():
        next(net.parameters()).fill_(weights)
    sums = [dpsgd.private_sum(net, loss, examples(n), 1.0, 2.0, seeded(Rng((3,)))) for n in (2, 9)]
    assert torch.equal(*sums)
    assert torch.equal(sums[0], torch.from_numpy(noised(np.zeros(sums[0].numel()), 2.0, source)))
    assert (sums[0] != 0).all()


# -- what a server may send ---------------------------------------------------------------------------------------------


def first_request(method, value):
    """A first request in which every weight or pixel is replaced by a value."""
    started, _ = method.start_round(method.server_init(Rng((1,))), ["a"], Rng((2,)))
    sent = method.broadcast(started, "a", True).parts
    return {n: np.full_like(a, value) if codec.startswith("float") else a for n, (codec, a) in sent.items()}


def clip_of(method):
    """The largest norm of a client's update; the setting has another name in each method."""
    return method.max_grad_norm if hasattr(method, "max_grad_norm") else method.max_update_norm


@pytest.mark.parametrize("lr", [None, 1e38])
@pytest.mark.parametrize("value", [None, 3e38, -1e38, 1e30])
@pytest.mark.parametrize("name", ["fedgan, dp-fedavg", "dpfedgan, dp-fedavg"])
def test_no_weights_from_the_server_make_an_update_exceed_the_clip(name, value, lr):
    method = quick(name)
    method = replace(method, lr=lr) if lr else method
    message = ServerMessage(0, first_request(method, value)) if value else None
    if message is None:
        first = method.server_init(Rng((1,)))
        message = ServerMessage(0, {n: first[n] for n in ("generator", "discriminator")})
    sent = []
    for data in rivals():
        _, reply = method.client_round({}, message, data, Rng((2,)))
        sent.append(np.concatenate([a.astype(np.float64) for a in reply.parts.values()]))
    assert all(np.isfinite(v).all() for v in sent)
    assert max(np.linalg.norm(v) for v in sent) <= clip_of(method)
    assert max(np.linalg.norm(a - b) for a in sent for b in sent) <= method.mechanism.sensitivity


@pytest.mark.parametrize("lr", [None, 1e38])
@pytest.mark.parametrize("value", [3e38, 1e30, 0.5])
def test_no_fakes_from_the_server_make_a_gradient_exceed_the_clip(monkeypatch, value, lr):
    from vitrail.methods import gswgan

    method = quick("gswgan, gradient", fake_dtype="float32")
    method = replace(method, lr=lr) if lr else method
    state, message = method.client_init("a", Rng((3,))), ServerMessage(0, first_request(method, value))
    (some, *_) = rivals()
    a, b = (method.client_round(state, message, some, Rng((k,)))[1].parts["gradient"] for k in (1, 2))
    assert np.isfinite(a).all()
    assert (a != 0).all()
    assert (a != b).all()
    monkeypatch.setattr(gswgan, "noised", lambda vector, sigma, source: vector)
    out = [method.client_round(state, message, data, Rng((2,)))[1].parts["gradient"] for data in rivals()]
    assert max(np.linalg.norm(u - v) for u in out for v in out) <= method.mechanism.sensitivity


@pytest.mark.parametrize("value", [3e38, -1e38])
def test_overflowing_weights_from_the_server_reveal_nothing_of_the_images(value):
    """All gradients on images count as zero, so two clients with equally many images send the same bits."""
    method = replace(quick("fedgan, dp-sgd", sync="d", upload="synced"), g_loss="minimax")
    message = ServerMessage(
        0, first_request(method, 0.1) | {"discriminator": first_request(method, value)["discriminator"]}
    )
    a, b = (digits().train.take(np.arange(at, at + 20)) for at in (0, 100))
    replies = [method.client_round({}, message, data, Rng((2,)))[1].parts for data in (a, b)]
    assert set(replies[0]) == {"generator", "discriminator"}
    for name in replies[0]:
        assert replies[0][name].tobytes() == replies[1][name].tobytes()


# -- sums of features ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1e38, 1e12, 1e-30, math.inf, math.nan])
def test_features_that_overflow_do_not_exceed_the_sensitivity(factor):
    psi = copy.deepcopy(load_public_features("vitrail-fashion", "all", "cpu")[0])
    with torch.no_grad():
        for p in psi.parameters():
            p.mul_(factor)
    s = Summary(psi, 2, (1, 8, 8))
    pixels, labels = digits().train.pixels[:12], digits().train.labels[:12]
    rows = s.rows(pixels).astype(np.float64)
    assert rows.min() >= 0
    assert max(np.linalg.norm(rows[:, 1 : 1 + s.d], axis=1)) <= s.grid
    assert max(np.linalg.norm(rows[:, 1 + s.d :], axis=1)) <= s.grid
    whole = class_sums(s, pixels, labels, 10)
    for i in range(12):
        other = pixels.copy()
        other[i] = 255 - other[i]
        change = np.linalg.norm((class_sums(s, other, labels, 10) - whole).astype(np.float64))
        assert change <= sensitivity(10) * s.grid


# -- the clips themselves, and noise ------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["float32", "float16"])
@pytest.mark.parametrize("clip", [1e-6, 1.0, 1e4])
def test_clipping_gives_finite_numbers_within_the_norm(codec, clip):
    for v in (*BAD, 0.0, 1e-320, 1.0, 3e38, 1e200, 1.7e308):
        for vector in (np.array([0.5, v, -0.5]), np.full(50, v)):
            for found in (
                clipped(vector, clip, codec),
                np.concatenate(list(clip_update({"a": vector[:1], "b": vector[1:]}, clip, codec).values())),
            ):
                assert np.isfinite(found).all()
                assert np.linalg.norm(found.astype(np.float64)) <= clip
            rows = clipped_rows(np.stack([vector, np.ones_like(vector)]), clip)
            assert np.isfinite(rows).all()
            assert np.linalg.norm(rows, axis=1).max() <= clip


@pytest.mark.parametrize(
    "draw", [gaussian, discrete_gaussian, lambda source, n, sigma: noised(np.ones(n), sigma, source)]
)
@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf, 1e-300, 5e-324, 2.0**41])
def test_noise_of_an_invalid_sigma_is_refused(draw, sigma):
    with pytest.raises(VitrailError, match="noise of sigma"):
        draw(seeded(Rng((1,))), 3, sigma)


@pytest.mark.parametrize("method", METHODS)
def test_settings_of_methods_may_not_overflow(method):
    """A server chooses the settings that nodes train with."""
    fields = config.settings_model(method).model_fields
    own = set(fields) - set(config.Settings.model_fields)
    floats = [n for n in own if fields[n].annotation is float or float in get_args(fields[n].annotation)]
    for name in floats:
        for value in (1e39, -1e39, math.nan, math.inf):
            with pytest.raises(BadSettings, match=name):
                config.resolve(method, {name: value})


@pytest.mark.parametrize("setting", ["lr", "max_update_norm", "noise_multiplier", "epsilon"])
def test_a_node_refuses_settings_from_the_server_that_overflow(setting):
    with pytest.raises(BadSettings, match=setting):
        resolved_settings(RunSpec({"method": "prism", "privacy": "mask-update", setting: 1e39}))


def test_these_tests_cover_every_mechanism():
    assert {quick(name).mechanism.name for name in PRIVATE} >= {"moments", "dp-sgd", "dp-fedavg", "gradient"}
