"""PRISM's Algorithm 1 compared with slow plain versions of its lines."""

import math

import numpy as np
import pytest
import torch

from tests.federation import federate, quick, shares
from vitrail.methods.base import ServerMessage
from vitrail.methods.prism.messages import decode_mask
from vitrail.utils.rng import Rng
from vitrail.wire.message import decode


def sent_masks(method, server, traffic):
    """Return the masks of the replies, decoded by the server."""
    coded = [next(p for p in decode(raw).parts if p.name == "mask").array() for _, raw in traffic.replies]
    return [decode_mask(method, server, raw) for raw in coded]


def first_state(method):
    """Return the server's state when the first replies arrive."""
    rng = Rng((5,)).child("server")
    return method.start_round(method.server_init(rng.child("init")), list(shares()), rng.child(0, "open"))[0]


def test_the_server_averages_masks_into_theta(tmp_path):
    method = quick("prism", rounds=1)
    fed, _, traffic = federate(method, tmp_path)
    masks = sent_masks(method, first_state(method), traffic)
    theta = np.clip(sum(m.astype(float) for m in masks) / 3, method.theta_clamp, 1 - method.theta_clamp)
    assert np.abs(fed.server["s"] / 1024 - np.log(theta / (1 - theta))).max() <= 0.5 / 1024 + 1e-9


@pytest.mark.parametrize("how", ["expected", "sampled"])
def test_mada_moves_scores_by_the_hamming_distance_of_masks(how, tmp_path):
    plain, *_ = federate(quick("prism", rounds=1), tmp_path / "a")
    method = quick("prism", rounds=1, mada=how)
    fed, *_ = federate(method, tmp_path / "b")
    s_t, s_agg = (s / 1024 for s in (first_state(method)["s"], plain.server["s"]))
    a, b = (1 / (1 + np.exp(-s)) for s in (s_t, s_agg))
    lam = np.mean(a * (1 - b) + b * (1 - a))
    sent = fed.server["lambda"] / 65536
    assert sent == pytest.approx(lam, abs=1e-5 if how == "expected" else 4 * 0.5 / math.sqrt(method.size))
    assert np.abs(fed.server["s"] / 1024 - ((1 - sent) * s_t + sent * s_agg)).max() <= 1 / 1024


@pytest.mark.parametrize(("path", "alpha"), [("backward", 50), ("forward", 30), ("backward", 0), ("forward", 100)])
def test_alpha_selects_score_layers_from_the_end_or_the_start(path, alpha):
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
def test_score_layers_are_averaged_as_in_the_paper(form, tmp_path):
    method = quick("prism", rounds=1, alpha=100, score_form=form, score_codec="float32")
    fed, _, traffic = federate(method, tmp_path)
    sent = [next(p for p in decode(raw).parts if p.name == "scores").array() for _, raw in traffic.replies]
    mean = np.mean([x.astype(np.float64) for x in sent], axis=0)
    theta = np.clip(mean, method.theta_clamp, 1 - method.theta_clamp)
    expected = np.log(theta / (1 - theta)) if form == "theta" else mean
    assert np.abs(fed.server["s"] / 1024 - expected).max() <= 0.5 / 1024 + 1e-6
    assert set(method.reply_spec()) == {"scores", "metric.loss"}


def test_noise_is_added_to_theta_and_clipped_before_the_mask_is_sampled():
    method = quick("prism", privacy="paper", noise_multiplier=0.3, theta_clip=0.1, alpha=100, score_form="theta")
    s = torch.linspace(-4, 4, method.size)
    message = ServerMessage(0, {"seed": np.array([7]), "draws": np.array([8]), "stratum": np.array([0, 3])})
    theta = method.upload(s, np.zeros(method.size, np.int16), message, Rng((3,)))["scores"]
    assert theta.min() == pytest.approx(0.1)
    assert theta.max() == pytest.approx(0.9)
    middle = torch.sigmoid(s).numpy()
    inside = (theta > 0.1) & (theta < 0.9) & (np.abs(middle - 0.5) < 0.05)  # noise that is hardly clipped
    assert np.std(theta[inside] - middle[inside]) > 0.15
    assert method.mechanism.sigma == 0.3
    assert "nothing enforces" in method.mechanism.assumed


def stratified_mask(method, k, of, theta, round_=0):
    message = ServerMessage(round_, {"draws": np.array([7], np.uint64), "stratum": np.array([k, of])})
    return method.uniform(message, Rng((k,)).child("upload")) < theta


def test_stratified_masks_are_bernoulli_with_mean_within_1_over_k_of_theta():
    method, K = quick("prism"), 10
    theta = torch.rand(method.size, generator=torch.Generator().manual_seed(3))
    stratified = torch.stack([stratified_mask(method, k, K, theta) for k in range(K)]).float()
    assert (stratified.mean(0) - theta).abs().max() <= 1 / K + 1e-5
    for mask in stratified:  # each mask alone is Bern(θ): its mean over elements is that of θ
        assert abs(mask.mean() - theta.mean()) < 4 * 0.5 / math.sqrt(method.size)
    alone = quick("prism", sampling="independent")
    independent = torch.stack([stratified_mask(alone, k, K, theta) for k in range(K)]).float()
    assert (independent.mean(0) - theta).square().mean() > 5 * (stratified.mean(0) - theta).square().mean()


def test_training_lowers_the_loss(tmp_path):
    method = quick("prism", rounds=6, local_steps=8, batch_size=30)
    _, results, _ = federate(method, tmp_path, indices=shares(each=60))
    assert results[-1].metrics["loss"] < 0.8 * results[0].metrics["loss"]
