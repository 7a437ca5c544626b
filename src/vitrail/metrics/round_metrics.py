"""A run watched on its way: a cheap distance with our own network, and accuracy, always on the same pictures."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import torch

from vitrail.data.dataset import Dataset
from vitrail.metrics.evaluation import as_stored, requested_labels, split_validation
from vitrail.metrics.extractors import Extractor, choose_ruler, features_of, own
from vitrail.metrics.frechet import Gaussian, frechet
from vitrail.metrics.oracle import confidence
from vitrail.models.model_file import Classifier, Generator
from vitrail.utils.errors import VitrailError

SAMPLES = 500
FEWEST = 10  # held-out pictures below which nothing can be measured


class RoundMetrics:
    """Validation pictures, which are held out from clients and from `vitrail evaluate` alike.

    What it says ranks the rounds of a run and is no result: few samples bias the distance upwards, for all alike.
    """

    def __init__(self, data: Dataset, trained_against: Iterable[str]) -> None:
        self.real, _ = split_validation(data.test)
        self.ruler = choose_ruler(data.name, trained_against)

    @cached_property
    def target(self) -> tuple[Extractor, Gaussian]:
        """The network that measures, and the real pictures' features."""
        extractor = own(self.ruler)
        return extractor, features_of(extractor, self.real).gaussian

    @torch.no_grad()
    def distance(self, generator: Generator) -> float | None:
        """Fréchet distance of a generator to real pictures; None where it makes no numbers."""
        extractor, target = self.target
        classes = len(generator.classes)
        truth = self.real.labels if classes > 1 else None
        y = None if truth is None else requested_labels(truth, classes, SAMPLES, 0)
        fake = Gaussian.empty(extractor.dim)
        for x, _ in generator.batches(SAMPLES, y):
            try:
                fake.update(extractor.rows(as_stored(x)))
            except VitrailError:
                return None
        return frechet(target, fake)

    def accuracy(self, classifier: Classifier) -> float:
        """The share of real pictures that a classifier names rightly."""
        return float(confidence(classifier.net, self.real)[0].mean())


def round_metrics_for(data: Dataset, trained_against: Iterable[str]) -> RoundMetrics | None:
    """A gauge, where enough pictures are held out."""
    return RoundMetrics(data, trained_against) if len(split_validation(data.test)[0]) >= FEWEST else None
