"""PRISM's mechanisms: the sensitivity and the noise are those that the ledger states."""

import math

import numpy as np
import pytest
import torch

from tests.federation import digits, federate, quick, shares
from vitrail.methods import released_sums
from vitrail.methods.prism import mechanisms
from vitrail.methods.prism.mechanisms import noised_theta
from vitrail.privacy.accounting import epsilon, second_opinion
from vitrail.privacy.claims import claim
from vitrail.privacy.feature_sums import class_sums
from vitrail.privacy.noise import seeded
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import load
from vitrail.wire import scores


def test_no_two_clients_change_theta_by_more_than_the_sensitivity(monkeypatch):
    monkeypatch.setattr(mechanisms, "gaussian", lambda source, n, sigma: np.zeros(n))
    method = quick("prism", privacy="mask-update", max_update_norm=0.7, noise_multiplier=1.0, theta_clip=1e-6)
    rng = np.random.default_rng(0)
    s_t = scores.first(3, method.size, "normal", 1.0)
    extremes = [torch.zeros(method.size), torch.ones(method.size)]
    some = [torch.from_numpy(rng.random(method.size)).float() for _ in range(4)]
    near = [torch.from_numpy(scores.theta(s_t)).float() + sign * 1e-6 for sign in (-1, 1)]
    out = [noised_theta(method, theta, s_t, seeded(Rng((1,)))) for theta in extremes + some + near]
    largest = max(float((a.double() - b.double()).norm()) for a in out for b in out)
    assert largest <= method.mechanism.sensitivity + 1e-4
    assert largest > method.mechanism.sensitivity / 2  # clipped, not set to zero


def test_uploaded_theta_has_the_noise_of_the_mechanism():
    method = quick("prism", privacy="mask-update", max_update_norm=0.01, noise_multiplier=1.0)
    s_t = np.zeros(method.size, np.int16)  # θ_t = 1/2, far from the clip
    sent = noised_theta(method, torch.full((method.size,), 0.5), s_t, seeded(Rng((1,))))
    assert float(sent.std()) == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("settings", [{"privacy": "mask-update"}, {"privacy": "moments"}])
def test_epsilon_of_the_whole_run_is_the_requested_one(settings):
    method = quick("prism", rounds=7, epsilon=3.0, **settings)
    spent = [(method.mechanism.noise, method.mechanism.answers(7))]
    assert epsilon(spent, method.delta) == pytest.approx(3.0, rel=1e-3)
    assert second_opinion(spent, method.delta)[1] == pytest.approx(3.0, rel=0.01)


def test_the_papers_noise_is_marked_as_assumed_and_composed_over_all_rounds():
    method = quick("prism", rounds=12, privacy="paper", epsilon=9.8)
    assert method.mechanism.sigma == pytest.approx(math.sqrt(2 * math.log(1.25e5)) / 9.8)
    found = claim(method.mechanism, 12, 1e-5, "seed")
    assert "assumed, not proven" in found["says"]
    assert found["private"] is False
    assert found["epsilon"] > 50


def test_the_bound_by_sampling_is_reported_only_if_draws_are_secret():
    own = quick("prism", privacy="mask-update", epsilon=9.8, sampling="independent")
    assert "by Rényi" in own.mechanism.bound
    assert quick("prism", privacy="mask-update", epsilon=9.8).mechanism.bound == ""


def test_the_loss_is_sent_only_if_it_is_computed_from_noised_values():
    assert "metric.loss" in quick("prism", privacy="moments", epsilon=3.0).reply_spec()
    for privacy in ("mask-update", "paper"):
        assert "metric.loss" not in quick("prism", privacy=privacy, epsilon=3.0).reply_spec()


def test_images_are_used_only_through_noised_sums(tmp_path):
    """Two clients whose noised sums are equal send the same bits, whatever their images are."""
    method = quick("prism", privacy="moments", epsilon=3.0, rounds=2)
    images = {"client-0": np.arange(24)}
    first = federate(method, tmp_path / "a", indices=images)[2].replies

    def same_sums(summary, pixels, labels, classes):
        return class_sums(summary, digits().train.pixels[:24], digits().train.labels[:24], classes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(released_sums, "class_sums", same_sums)
        patch.setattr(released_sums, "cached", lambda kind, key, compute: compute())
        other = federate(method, tmp_path / "b", indices={"client-0": np.arange(100, 140)})[2].replies
    assert [data for _, data in first] == [data for _, data in other]


def test_moments_are_noised_once_and_stored(tmp_path):
    method = quick("prism", privacy="moments", epsilon=3.0)
    federate(method, tmp_path, rounds=1, indices=shares())
    before = load(tmp_path / "client-0.safetensors")["state"]["loss"]["released"]
    federate(method, tmp_path / "more", rounds=3, indices=shares())
    after = load(tmp_path / "more" / "client-0.safetensors")["state"]["loss"]["released"]
    assert (before == after).all()


@pytest.mark.parametrize("wrong", [{"loss": "gan"}, {"moment_averaging": "adam"}])
def test_losses_that_cannot_use_noised_moments_are_refused(wrong):
    with pytest.raises(VitrailError, match="noised moments"):
        quick("prism", privacy="moments", epsilon=3.0, **wrong).reply_spec()
