"""Comparison of pairs of images pixel by pixel: SSIM (Wang et al. 2004) and normalised mean square error."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from vitrail.data.dataset import Images
from vitrail.metrics.measure import Bounded, Measure, bootstrap
from vitrail.nets.feature_moments import to_float
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Return the structural similarity of each pair of images in [-1, 1], with mirrored edges: 1 for equal images."""
    from torchmetrics.functional.image import structural_similarity_index_measure

    _same_shape(a, b)
    found = structural_similarity_index_measure((a + 1) / 2, (b + 1) / 2, data_range=1.0, reduction="none")
    return torch.as_tensor(found).double().reshape(len(a))


def nmse(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return |a - b|² and |b|² of each pair of images in [-1, 1], scaled to [0, 1].

    The NMSE of two sets is the sum of the first over that of the second, so that a black reference does not dominate.

    Examples:
        >>> b = torch.tensor([[[[1.0, -1.0]]]])
        >>> nmse(-b, b)
        (tensor([2.], dtype=torch.float64), tensor([1.], dtype=torch.float64))
    """
    _same_shape(a, b)
    a, b = ((x.double() + 1) / 2 for x in (a, b))
    return (a - b).square().flatten(1).sum(1), b.square().flatten(1).sum(1)


def _same_shape(a: Tensor, b: Tensor) -> None:
    if a.shape != b.shape:
        raise VitrailError(
            f"images {tuple(a.shape)} and {tuple(b.shape)} cannot be paired; expected equal numbers of the same size"
        )


class Pairs:
    """SSIM and NMSE of generated images, each paired with a test image of its class."""

    def __init__(self, real: Images, classes: int) -> None:
        self.real, self.draw = real, Rng((0,)).child("pairs").numpy()
        labels = real.class_labels(classes)
        self.of_class = [np.flatnonzero(labels == c) for c in range(max(classes, 1))]
        self.found = PairValues()

    def update(self, images: Tensor, labels: Tensor | None) -> None:
        """Add generated images in [-1, 1]."""
        classes = torch.zeros(len(images), dtype=torch.int64) if labels is None else labels
        there = torch.tensor([len(self.of_class[c]) > 0 for c in classes.tolist()])
        if there.any():
            pick = np.array([self.draw.choice(self.of_class[c]) for c in classes[there].tolist()])
            self.found.add(images[there], to_float(self.real.pixels[pick]))

    def compute(self) -> list[Measure]:
        """Return both over all pairs; the notes have the values of pairs of different real images of one class."""
        rng = Rng((0,)).child("bootstrap", "pairs").numpy()
        counts, two = (len(self.real), len(self.found)), self._real_pairs()
        reference = [v for v, _, _ in two.bounded(rng)] if len(two) else [math.nan, math.nan]
        first, second = (f"pairs of one class; pairs of real images: {v:.3f}" for v in reference)
        ssim_, nmse_ = self.found.bounded(rng)
        return [
            Measure("ssim", *ssim_, *counts, "higher", "pixels", first),
            Measure("nmse", *nmse_, *counts, "lower", "pixels", second),
        ]

    def _real_pairs(self, most: int = 1000) -> PairValues:
        found, first, second = PairValues(), [], []
        for rows in self.of_class:
            mixed = self.draw.permutation(rows)[: 2 * most // len(self.of_class)]
            even = len(mixed) // 2 * 2
            first.append(mixed[0:even:2])
            second.append(mixed[1:even:2])
        a, b = (to_float(self.real.pixels[np.concatenate(rows)]) for rows in (first, second))
        if len(a):
            found.add(a, b)
        return found


class PairValues:
    """Values of the pairs of images compared so far."""

    def __init__(self) -> None:
        self.batches: list[tuple[Tensor, Tensor, Tensor]] = []  # SSIM, |a - b|² and |b|² of each pair

    def __len__(self) -> int:
        return sum(len(similarity) for similarity, _, _ in self.batches)

    def add(self, a: Tensor, b: Tensor) -> None:
        """Compare images in [-1, 1]; b are the references."""
        self.batches.append((ssim(a, b), *nmse(a, b)))

    def bounded(self, rng: np.random.Generator) -> tuple[Bounded, Bounded]:
        """Return SSIM and NMSE over all pairs, with their intervals."""
        s, error, energy = (torch.cat(part).numpy() for part in zip(*self.batches, strict=True))
        return bootstrap([s], rng), bootstrap([error / max(energy.mean(), 1e-12)], rng)
