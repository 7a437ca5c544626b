"""Metrics during training: the ranking of models, and an independent Fréchet distance."""

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics.image.fid import FrechetInceptionDistance

from tests.federation import digits
from tests.metrics.test_evaluation import replay
from vitrail.data import from_arrays
from vitrail.metrics.evaluation import requested_labels, split_validation
from vitrail.metrics.extractors import load_extractor
from vitrail.metrics.round_metrics import RoundMetrics, round_metrics_for


def test_round_metrics_rank_models_on_the_same_noise():
    metrics = RoundMetrics(digits(), [])
    assert (
        metrics.distance(replay())
        == metrics.distance(replay())
        < metrics.distance(replay(0.2))
        < metrics.distance(replay(0.6))
    )


def test_the_distance_of_round_metrics_is_that_of_torchmetrics():
    metrics, generator = RoundMetrics(digits(), []), replay(0.3)
    psi = load_extractor("vitrail-cifar")

    class Features(nn.Module):
        num_features = 384

        def forward(self, x):
            return psi.rows(x)

    theirs = FrechetInceptionDistance(feature=Features())
    validation, _ = split_validation(digits().test)
    fake = generator.sample(500, requested_labels(validation.labels, 10, 500, 0))
    with torch.no_grad():
        theirs.update(torch.from_numpy(validation.pixels).float() / 127.5 - 1, real=True)
        theirs.update((fake * 255).round() / 127.5 - 1, real=False)
    assert metrics.distance(generator) == pytest.approx(float(theirs.compute()), rel=1e-3)


def test_a_generator_with_pixels_that_are_not_finite_has_no_distance():
    assert RoundMetrics(digits(), []).distance(replay(float("nan"))) is None


def test_too_few_validation_images_give_no_round_metrics():
    few = from_arrays(np.zeros((60, 8, 8), np.uint8), size=8)
    assert round_metrics_for(few, []) is None
