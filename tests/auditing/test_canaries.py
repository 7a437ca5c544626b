"""Canaries: an intact mechanism stays within its claim, one without its noise is refuted."""

import numpy as np
import pytest

from tests.auditing.audited import target
from vitrail.auditing import canary_images, canary_masks, canary_vectors
from vitrail.auditing.attack import from_one_run, from_trials
from vitrail.methods.prism import mechanisms as prism_privacy
from vitrail.privacy import clipping as clip
from vitrail.privacy import dpfedavg, dpsgd
from vitrail.privacy import feature_sums as moments
from vitrail.privacy.accounting import epsilon
from vitrail.utils.rng import Rng


def no_noise(source, n, sigma):
    return np.zeros(n)


def attacked_release(target):
    return canary_images.AttackedRelease(target, target.plan.method.feature_summary())


@pytest.mark.parametrize("method", ["moments", "prism"])
def test_noised_moments_stay_within_their_claim_and_the_bound_is_not_zero(method):
    finding = canary_images.attack(target(method, 64, epsilon=9.8, privacy="moments", width=0.25))
    assert not any(lower.refutes for lower in finding.lowers)
    assert finding.lowers[1].epsilon > 1  # an audit that finds nothing at ε = 9.8 would be useless
    assert finding.lowers[1].claimed == pytest.approx(9.8, rel=1e-3)


def test_moments_without_their_noise_are_refuted(monkeypatch):
    monkeypatch.setattr(moments, "gaussian", no_noise)
    finding = canary_images.attack(target("moments", 64, epsilon=1.0))
    plain, gaussian, *_ = finding.lowers
    assert plain.epsilon > plain.claimed
    assert gaussian.epsilon > 9.8 > gaussian.claimed


def test_one_run_with_many_canaries_distinguishes_noise_from_none(monkeypatch):
    intact = target("moments", 250, epsilon=1.0)
    bounds = from_one_run(canary_images.all_canaries_at_once(intact, attacked_release(intact)), intact, 1.0)
    assert not any(lower.refutes for lower in bounds)
    monkeypatch.setattr(moments, "gaussian", no_noise)
    bounds = from_one_run(canary_images.all_canaries_at_once(intact, attacked_release(intact)), intact, 1.0)
    assert all(lower.refutes for lower in bounds)


def test_canaries_come_close_to_the_claimed_sensitivity():
    for labels in ("auto", "ignore"):
        attacked = target("moments", labels=labels)
        found = attacked_release(attacked)
        drawn = canary_images.draw_canaries(found.summary, 200, found.kinds, Rng((2,)))
        widest = np.sqrt(np.diag(drawn.gram()).max())
        assert 0.6 * attacked.plan.method.mechanism.sensitivity < widest
        assert widest <= attacked.plan.method.mechanism.sensitivity


def test_the_gram_matrix_is_that_of_the_explicit_differences():
    attacked = target("moments")
    found = attacked_release(attacked)
    drawn = canary_images.draw_canaries(found.summary, 7, found.kinds, Rng((3,)))
    U = np.zeros((7, found.kinds, drawn.rows[0].shape[1]))
    for i in range(7):
        U[i, drawn.labels[0][i]] += drawn.rows[0][i]
        U[i, drawn.labels[1][i]] -= drawn.rows[1][i]
    flat = U.reshape(7, -1)
    np.testing.assert_allclose(drawn.gram(), flat @ flat.T, atol=1e-9)
    sums = np.random.default_rng(0).normal(size=U.shape[1:])
    np.testing.assert_allclose(drawn.along(sums), flat @ sums.ravel(), atol=1e-9)


@pytest.mark.parametrize("sampling", ["stratified", "independent"])
def test_mask_updates_stay_within_their_claim(sampling):
    finding = canary_masks.attack(
        target("prism", 60, privacy="mask-update", epsilon=30.0, rounds=1, sampling=sampling, width=0.25)
    )
    assert not any(lower.refutes for lower in finding.lowers)
    assert finding.lowers[1].epsilon > 1


@pytest.mark.parametrize("sampling", ["stratified", "independent"])
def test_mask_updates_without_their_noise_are_refuted(sampling, monkeypatch):
    monkeypatch.setattr(prism_privacy, "gaussian", no_noise)
    settings = {"privacy": "mask-update", "epsilon": 1.0, "rounds": 1, "sampling": sampling, "width": 0.25}
    assert any(lower.refutes for lower in canary_masks.attack(target("prism", 80, **settings)).lowers)


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_dp_sgd_stays_within_its_claim_and_is_refuted_without_noise(rate, monkeypatch):
    mechanism, attacked = dpsgd.mechanism(1.0, rate, 1, "").with_multiplier(0.8), target("moments")
    claimed = epsilon([(mechanism.noise, 4)], 1e-5)
    bounds = from_trials(
        canary_vectors.attack_steps(mechanism, 4, 400, Rng((1,))), attacked, claimed, gaussian=rate == 1
    )
    assert not any(lower.refutes for lower in bounds)
    assert bounds[0].epsilon > 0
    monkeypatch.setattr(clip, "gaussian", no_noise)
    strict = dpsgd.mechanism(1.0, rate, 1, "").with_multiplier(15.0)
    claimed = epsilon([(strict.noise, 4)], 1e-5)
    bounds = from_trials(canary_vectors.attack_steps(strict, 4, 400, Rng((1,))), attacked, claimed, gaussian=rate == 1)
    assert bounds[0].refutes


def test_dp_fedavg_stays_within_its_claim_and_is_refuted_without_noise(monkeypatch):
    mechanism, attacked = dpfedavg.mechanism(0.5, "D", False).with_multiplier(2.0), target("moments")
    claimed = epsilon([(mechanism.noise, 3)], 1e-5)
    bounds = from_trials(canary_vectors.attack_sums(mechanism, 3, 400, Rng((1,))), attacked, claimed)
    assert not any(lower.refutes for lower in bounds)
    assert bounds[1].epsilon > 0.5
    monkeypatch.setattr(clip, "gaussian", no_noise)
    assert from_trials(canary_vectors.attack_sums(mechanism, 3, 400, Rng((1,))), attacked, claimed)[1].refutes


def test_attacks_skip_runs_that_they_do_not_apply_to():
    plain = target("fedgan")
    assert [m.attack(plain) for m in (canary_images, canary_masks, canary_vectors)] == [None] * 3
