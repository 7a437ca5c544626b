"""Attacks on models: a model that copies is detected, another is not; images are reconstructed only without noise."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.auditing.audited import target
from tests.federation import digits
from vitrail.auditing import copies, inversion, membership, shadows
from vitrail.auditing.membership import auc, figures
from vitrail.models.model_file import Generator
from vitrail.nets.feature_moments import to_float


class Copier(nn.Module):
    """A generator that returns training images."""

    def __init__(self, pixels):
        super().__init__()
        self.images = to_float(pixels)

    def forward(self, z, y=None):
        return self.images[(z[:, 0].abs() * 1e4).long() % len(self.images)].clone()


@pytest.fixture(scope="module")
def unstarted():
    return target("moments", more={"samples": 1500})


def with_model(unstarted, pixels, folder=None):
    made = replace(unstarted, generator=Generator(Copier(pixels), 4, (1, 8, 8), (), {}))
    if folder is None:
        return made
    place = replace(made.plan.folder, path=folder)
    return replace(made, plan=replace(made.plan, folder=place))


def test_a_model_that_copies_its_training_images_is_detected(unstarted, tmp_path):
    copier = with_model(unstarted, unstarted.members.pixels, tmp_path)
    area, at_one_percent, *_ = membership.attack(copier).figures
    assert area.low > 0.7
    assert at_one_percent.low > 0.2 > at_one_percent.random_guess
    for figure in copies.attack(copier).figures:
        assert figure.value == 1
    assert (tmp_path / copies.GRID).stat().st_mode & 0o077 == 0  # it shows private images


def test_a_model_of_other_images_is_not_reported(unstarted, tmp_path):
    test = digits().test
    some, rest = np.array_split(np.random.default_rng(0).permutation(len(test)), 2)  # images are ordered by writer
    others = replace(unstarted.plan.data, test=test.take(some))
    honest = replace(unstarted, plan=replace(unstarted.plan, data=others))
    honest = with_model(honest, test.take(rest).pixels, tmp_path)
    area = membership.attack(honest).figures[0]
    assert area.low < 0.5 < area.high
    for figure in copies.attack(replace(honest, samples=150)).figures:  # few images occur twice
        assert figure.low < 0.01


def test_auc_is_the_share_of_pairs_and_its_interval_covers_the_truth():
    rng = np.random.default_rng(1)
    a, b = rng.normal(0.5, 1, 60).round(1), rng.normal(0, 1, 40).round(1)
    pairs = np.mean([[(x > y) + 0.5 * (x == y) for y in b] for x in a])
    assert auc(a, b)[0] == pytest.approx(pairs)
    true = 0.6382  # Φ(0.5/√2)
    covered = [
        low < true < high for _, low, high in (auc(rng.normal(0.5, 1, 80), rng.normal(0, 1, 80)) for _ in range(300))
    ]
    assert 0.9 < np.mean(covered) <= 1


def test_rates_that_need_more_images_are_excluded():
    names = [f.name for f in figures(np.arange(500.0), np.arange(500.0), "x")]
    assert names == ["AUC, x", "TPR at FPR 1.0%, x"]


def test_likelihood_ratios_find_members_where_a_threshold_fails():
    rng = np.random.default_rng(2)
    has = rng.random((16, 300)) < 0.5
    level = rng.normal(0, 10, 300)  # images differ far more from each other than by membership
    seen = level + has * 1.0 + rng.normal(0, 0.5, has.shape)
    assert auc(seen[has], seen[~has])[0] < 0.6
    ratio = shadows.likelihood_ratios(seen, has)
    assert auc(ratio[has], ratio[~has])[0] > 0.85


def test_shadow_runs_train_and_are_compared(monkeypatch):
    monkeypatch.setattr(shadows, "IMAGES", 40)
    more = {"shadows": 4, "seconds": 2.0}
    found = shadows.attack(target("fedgan", width=4, latent_dim=8, batch_size=16, rounds=2, more=more))
    names = [f.name for f in found.figures]
    assert names == ["AUC, distance to samples", "AUC, output of the discriminator"]
    assert all(0 <= f.value <= 1 for f in found.figures)
    assert "4 runs of 2 rounds on halves of 40 images" in found.note


def test_an_image_is_reconstructed_from_features_but_not_from_noised_ones(monkeypatch):
    monkeypatch.setattr(inversion, "VICTIMS", 1)
    monkeypatch.setattr(inversion, "STEPS", 150)
    found = inversion.attack(target("moments", epsilon=9.8, more={"seconds": 60.0}))
    noised, _, exact, _ = found.figures
    assert noised.value < noised.random_guess  # another image is nearer than the reconstructed one
    assert exact.value > exact.random_guess + 1


def test_weights_after_one_step_reveal_the_image(monkeypatch):
    monkeypatch.setattr(inversion, "VICTIMS", 1)
    monkeypatch.setattr(inversion, "STEPS", 120)
    attacked = target("fedgan", width=8, more={"seconds": 60.0})
    psnr, ssim = inversion.attack(attacked).figures
    others = to_float(attacked.members.pixels[:300])
    typical = torch.stack([inversion.psnr(others, x[None].expand_as(others)).median() for x in others[:20]]).mean()
    assert psnr.value > float(typical) + 1  # nearer than most images of the same kind
    assert ssim.value > 0.5


@pytest.mark.parametrize("settings", [{"sync": "g", "upload": "synced"}, {"privacy": "dp-fedavg", "epsilon": 2.0}])
def test_weights_are_attacked_only_where_the_method_shows_d_without_noise(settings):
    assert inversion.attack(target("fedgan", width=8, **settings)) is None
    assert target("fedgan", width=8).plan.method.sent_discriminator() is not None
