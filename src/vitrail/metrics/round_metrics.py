"""Metrics during training: a cheap distance by a network of this package, and accuracy, on validation images."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import torch

from vitrail.data.dataset import Dataset
from vitrail.metrics.evaluation import MIN_IMAGES, requested_labels, round_to_8_bits, split_validation
from vitrail.metrics.extractors import Extractor, choose_feature_network, features_of, load_extractor
from vitrail.metrics.frechet import Gaussian, frechet
from vitrail.metrics.oracle import confidence
from vitrail.models.model_file import Classifier, Generator
from vitrail.utils.errors import VitrailError

SAMPLES = 500


class RoundMetrics:
    """Metrics on validation images, which neither clients nor `vitrail evaluate` use.

    They rank the rounds of a run and are not results: few samples bias the distance upwards, equally for all rounds.

    Args:
        data: The data of the run.
        trained_against: Feature networks that the run trains against.
    """

    def __init__(self, data: Dataset, trained_against: Iterable[str]) -> None:
        self.real, _ = split_validation(data.test)
        self.feature_network = choose_feature_network(data.name, trained_against)

    @cached_property
    def target(self) -> tuple[Extractor, Gaussian]:
        """The network that measures, and the real images' features."""
        extractor = load_extractor(self.feature_network)
        return extractor, features_of(extractor, self.real).gaussian

    @torch.no_grad()
    def distance(self, generator: Generator) -> float | None:
        """Return the Fréchet distance of a generator to real images; None if its pixels are not finite."""
        extractor, target = self.target
        classes = len(generator.classes)
        truth = self.real.labels if classes > 1 else None
        y = None if truth is None else requested_labels(truth, classes, SAMPLES, 0)
        fake = Gaussian.empty(extractor.dim)
        for x, _ in generator.batches(SAMPLES, y):
            try:
                fake.update(extractor.rows(round_to_8_bits(x)))
            except VitrailError:
                return None
        return frechet(target, fake)

    def accuracy(self, classifier: Classifier) -> float:
        """Return the share of real images that a classifier predicts correctly."""
        return float(confidence(classifier.net, self.real)[0].mean())


def round_metrics_for(data: Dataset, trained_against: Iterable[str]) -> RoundMetrics | None:
    """Return round metrics, or None if there are too few validation images."""
    return RoundMetrics(data, trained_against) if len(split_validation(data.test)[0]) >= MIN_IMAGES else None
