"""Distances between generated and real images in the features of a network.

Fréchet and kernel distance are in frechet.py. Improved precision and recall: Kynkäänniemi et al. 2019; density and
coverage: Naeem et al. 2020.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.metrics.extractors import Extractor, FeatureSet
from vitrail.metrics.frechet import few_samples, frechet, frechet_without, kernel_distance
from vitrail.metrics.measure import GROUPS, Bounded, Measure, jackknife, share

ROWS = 2000  # of each set, where all pairs are compared or a probe is fitted
NO_LIMIT = (-math.inf, math.inf)
NEAREST = 5


class Distances:
    """Fréchet and kernel distance, precision, recall, density and coverage, and a linear probe.

    Args:
        extractor: The feature network.
        real: Features of the real images.
        name: Name of the Fréchet distance.
        note: A remark on it.
        probes: Whether a linear probe is fitted where there are labels.
    """

    max_images: int | None = None  # generated images beyond this number are ignored

    def __init__(self, extractor: Extractor, real: FeatureSet, name: str, note: str = "", probes: bool = True) -> None:
        self.extractor, self.real, self.name, self.note, self.probes = extractor, real, name, note, probes
        self.fake = FeatureSet.empty(extractor.dim)

    def update(self, images: Tensor, labels: Tensor | None) -> None:
        """Add generated images in [-1, 1]."""
        room = len(images) if self.max_images is None else self.max_images - self.fake.gaussian.n
        if room > 0:
            self.fake.update(self.extractor.rows(images[:room]), None if labels is None else labels[:room])

    def compute(self) -> list[Measure]:
        """Return all measures by this network."""
        by, n, m = self.extractor.name, self.real.gaussian.n, self.fake.gaussian.n
        notes = self.note, few_samples(self.extractor.dim, n, m)
        found = [Measure(self.name, *self._frechet(), n, m, "lower", by, "; ".join(filter(None, notes)))]
        rows = min(n, m, ROWS)  # equal numbers, because radii grow where points are few
        real, fake = self.real.stored[:rows], self.fake.stored[:rows]
        value, without = kernel_distance(real, fake)
        found.append(Measure("kid", *jackknife(value, without, (1, 1), NO_LIMIT), rows, rows, "lower", by))
        for name, bounded in _neighbours(real.numpy(), fake.numpy()).items():
            found.append(Measure(name, *bounded, rows, rows, "higher", by, f"k = {NEAREST}"))
        if self.probes and self.real.labels and self.fake.labels:
            fit, fit_labels = self.fake.stored[:ROWS], torch.cat(self.fake.labels)[:ROWS]
            right = probe(fit, fit_labels, self.real.stored, torch.cat(self.real.labels))
            note = "fitted on generated images, tested on real test images"
            counts = len(right), len(fit)
            found.append(Measure("linear-probe", *share(right), *counts, "higher", by, note))
        return found

    def _frechet(self) -> Bounded:
        real, fake = self.real, self.fake
        without = frechet_without(real.stored, fake.gaussian), frechet_without(fake.stored, real.gaussian)
        shares = [len(s.stored) / s.gaussian.n for s in (real, fake)]
        return jackknife(frechet(real.gaussian, fake.gaussian), without, shares, (0, math.inf))


class Neighbourhoods:
    """All distances within and between two sets of features, computed once, for measures of any of their subsets."""

    def __init__(self, real: np.ndarray, fake: np.ndarray) -> None:
        from prdc.prdc import compute_pairwise_distance  # its import of scikit-learn takes seconds

        self.within_real, self.within_fake = compute_pairwise_distance(real), compute_pairwise_distance(fake)
        self.between = compute_pairwise_distance(real, fake)  # one row per real image, one column per generated image

    def shares(
        self, real: NDArray[np.bool_] | slice = slice(None), fake: NDArray[np.bool_] | slice = slice(None)
    ) -> dict[str, float]:
        """Return precision, recall, density and coverage of subsets, as defined by `prdc.compute_prdc`.

        Args:
            real: Mask over the real images; by default all.
            fake: Mask over the generated images; by default all.
        """
        from prdc.prdc import get_kth_value

        real_radius, fake_radius = (
            get_kth_value(d[some][:, some], NEAREST + 1)
            for d, some in ((self.within_real, real), (self.within_fake, fake))
        )  # each point is its own nearest neighbour
        between = self.between[real][:, fake]
        inside_real = between < real_radius[:, None]
        return {
            "precision": float(inside_real.any(0).mean()),
            "recall": float((between < fake_radius).any(1).mean()),
            "density": float(inside_real.sum(0).mean() / NEAREST),
            "coverage": float((between.min(1) < real_radius).mean()),
        }


def _neighbours(real: np.ndarray, fake: np.ndarray) -> dict[str, Bounded]:
    points = Neighbourhoods(real, fake)
    group = np.arange(len(real)) % GROUPS
    by_real = [points.shares(real=group != g) for g in range(GROUPS)]
    by_fake = [points.shares(fake=group != g) for g in range(GROUPS)]

    def bounded(name: str, value: float) -> Bounded:
        within = (0.0, math.inf if name == "density" else 1.0)
        return jackknife(value, [[s[name] for s in by] for by in (by_real, by_fake)], (1, 1), within)

    return {name: bounded(name, value) for name, value in points.shares().items()}


def probe(fit: Tensor, fit_labels: Tensor, test: Tensor, test_labels: Tensor) -> np.ndarray:
    """Fit a logistic regression on standardised features of one set and test it on another.

    Args:
        fit: Features (n, d) of the first set.
        fit_labels: Its labels.
        test: Features (m, d) of the second set.
        test_labels: Its labels.

    Returns:
        1.0 for each image of the second set that is classified correctly, otherwise 0.0.

    Examples:
        >>> x = torch.tensor([[0.0], [0.2], [1.0], [1.2]])
        >>> probe(x, torch.tensor([0, 0, 1, 1]), torch.tensor([[-1.0], [2.0], [3.0]]), torch.tensor([0, 1, 0])).tolist()
        [1.0, 1.0, 0.0]
    """
    if len(fit_labels.unique()) < 2:
        return np.asarray(test_labels.numpy() == fit_labels.numpy()[0], np.float64)
    return np.asarray(fitted_probe(fit, fit_labels).predict(test.numpy()) == test_labels.numpy(), np.float64)


def fitted_probe(fit: Tensor, fit_labels: Tensor) -> Any:
    """Return the fitted logistic regression of `probe`; there must be two labels or more."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits

    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=200, tol=1e-3))
    with warnings.catch_warnings(), threadpool_limits(1):  # BLAS threads mostly wait for each other here
        warnings.simplefilter("ignore", ConvergenceWarning)  # it stops early by design: there are many features
        return model.fit(fit.numpy(), fit_labels.numpy())
