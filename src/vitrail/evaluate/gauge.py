"""A run watched on its way: a cheap distance with our own network, always on the same noise and pictures."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from vitrail.artifact import Generator
from vitrail.data.pictures import Dataset
from vitrail.errors import VitrailError
from vitrail.evaluate.evaluation import as_stored, asked_labels, halves
from vitrail.evaluate.extractors import choose_ruler, features_of, own
from vitrail.evaluate.frechet import Gaussian, frechet

SAMPLES = 500
FEWEST = 10  # held-out pictures below which nothing can be measured


class Gauge:
    """Fréchet distance to validation pictures, which are held out from clients and from `vitrail evaluate` alike.

    Few samples bias it upwards, for all rounds alike: it ranks the rounds of a run and is no result.
    """

    def __init__(self, data: Dataset, trained_against: Iterable[str]) -> None:
        self.real, _ = halves(data.test)
        self.ruler = choose_ruler(data.name, trained_against)
        self.extractor = own(self.ruler)
        self.target = features_of(self.extractor, self.real).gaussian

    @torch.no_grad()
    def __call__(self, generator: Generator) -> float | None:
        """The distance of a generator; None where it makes no numbers."""
        classes = len(generator.classes)
        truth = self.real.labels if classes > 1 else None
        y = None if truth is None else asked_labels(truth, classes, SAMPLES, 0)
        fake = Gaussian.empty(self.extractor.dim)
        for x, _ in generator.batches(SAMPLES, y):
            try:
                fake.update(self.extractor.rows(as_stored(x)))
            except VitrailError:
                return None
        return frechet(self.target, fake)


def gauge_for(data: Dataset, trained_against: Iterable[str]) -> Gauge | None:
    """A gauge, where enough pictures are held out."""
    return Gauge(data, trained_against) if len(halves(data.test)[0]) >= FEWEST else None
