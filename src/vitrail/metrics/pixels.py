"""Pictures compared pixel by pixel, in pairs: SSIM (Wang et al. 2004) and normalised mean square error."""

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
    """Structural similarity of each pair of pictures in [-1, 1], edges mirrored: 1 for equal ones."""
    from torchmetrics.functional.image import structural_similarity_index_measure

    _same_shape(a, b)
    found = structural_similarity_index_measure((a + 1) / 2, (b + 1) / 2, data_range=1.0, reduction="none")
    return torch.as_tensor(found).double().reshape(len(a))


def nmse(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """|a - b|² and |b|² of each pair of pictures in [-1, 1], taken as brightness in [0, 1].

    The NMSE of two sets is the sum of the first over that of the second: a black reference must not decide it alone.

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
            f"pictures {tuple(a.shape)} and {tuple(b.shape)} cannot be paired; give as many, of the same size"
        )


class Pairs:
    """SSIM and NMSE of generated pictures, each paired with a held-out real one of its class."""

    def __init__(self, real: Images, classes: int) -> None:
        self.real, self.draw = real, Rng((0,)).child("pairs").numpy()
        labels = np.zeros(len(real), np.int64) if real.labels is None or not classes else real.labels
        self.of_class = [np.flatnonzero(labels == c) for c in range(max(classes, 1))]
        self.found = Compared()

    def update(self, pictures: Tensor, labels: Tensor | None) -> None:
        """Take in generated pictures in [-1, 1]."""
        asked = torch.zeros(len(pictures), dtype=torch.int64) if labels is None else labels
        there = torch.tensor([len(self.of_class[c]) > 0 for c in asked.tolist()])
        if there.any():
            pick = np.array([self.draw.choice(self.of_class[c]) for c in asked[there].tolist()])
            self.found.add(pictures[there], to_float(self.real.pixels[pick]))

    def compute(self) -> list[Measure]:
        """Both over all pairs; beside each, what two different real pictures of a class give."""
        rng = Rng((0,)).child("bootstrap", "pairs").numpy()
        counts, two = (len(self.real), len(self.found)), self._real_pairs()
        beside = [v for v, _, _ in two.bounded(rng)] if len(two) else [math.nan, math.nan]
        first, second = (f"pairs of one class; two real pictures: {v:.3f}" for v in beside)
        ssim_, nmse_ = self.found.bounded(rng)
        return [
            Measure("ssim", *ssim_, *counts, "higher", "pixels", first),
            Measure("nmse", *nmse_, *counts, "lower", "pixels", second),
        ]

    def _real_pairs(self, most: int = 1000) -> Compared:
        found, first, second = Compared(), [], []
        for rows in self.of_class:
            mixed = self.draw.permutation(rows)[: 2 * most // len(self.of_class)]
            even = len(mixed) // 2 * 2
            first.append(mixed[0:even:2])
            second.append(mixed[1:even:2])
        a, b = (to_float(self.real.pixels[np.concatenate(rows)]) for rows in (first, second))
        if len(a):
            found.add(a, b)
        return found


class Compared:
    """Pairs of pictures compared so far."""

    def __init__(self) -> None:
        self.ssim: list[Tensor] = []
        self.error: list[Tensor] = []
        self.energy: list[Tensor] = []

    def __len__(self) -> int:
        return sum(map(len, self.ssim))

    def add(self, a: Tensor, b: Tensor) -> None:
        """Compare pictures in [-1, 1]; b are the references."""
        error, energy = nmse(a, b)
        self.ssim.append(ssim(a, b))
        self.error.append(error)
        self.energy.append(energy)

    def bounded(self, rng: np.random.Generator) -> tuple[Bounded, Bounded]:
        """SSIM and NMSE over all pairs, with their intervals."""
        s, error, energy = (torch.cat(part).numpy() for part in (self.ssim, self.error, self.energy))
        return bootstrap([s], rng), bootstrap([error / max(energy.mean(), 1e-12)], rng)
