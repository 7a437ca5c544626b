"""Sums of normalised features: the only way in which a client's images enter, released once.

Each image becomes one row of integers: its count, ψ̂ = ψ/|ψ| and ψ̂² = ψ²/|ψ²|, pooled to a few positions, times a grid
g; rows are summed by class. `sensitivity` bounds what one image changes. Integer sums have the same bits however the
images are divided among clients. Releasing feature moments once is due to DP-MERF and DP-MEPF (Harder et al. 2021,
2023); here the data is federated. feature_sum_messages.py encodes sums and checks clients' replies.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.nets.feature_moments import FeatureMoments, to_float
from vitrail.nets.feature_network import Features, LayerPlan
from vitrail.privacy.noise import Source, discrete_gaussian, gaussian

Sums = NDArray[np.int64]
COUNT_WEIGHT = 0.25  # of an image's count relative to its features: class sizes need less accuracy


@dataclass(frozen=True)
class Summary:
    """What is summed of an image: ψ pooled to at most pool x pool positions per layer, on a grid of integers.

    Args:
        psi: The feature network ψ.
        pool: Largest side of a pooled feature map.
        shape: Shape of an image: channels, height, width.
    """

    psi: Features
    pool: int
    shape: tuple[int, ...]

    @property
    def d(self) -> int:
        """Size of the pooled ψ."""
        return pooled_size(self.psi.plan, self.psi.layers, self.pool, self.shape)

    @property
    def grid(self) -> int:
        """g: fine enough that rounding, at most √d/2 in norm, is below half a per cent of it."""
        return int(2 ** math.ceil(math.log2(128 * math.sqrt(self.d))))

    @property
    def scale(self) -> float:
        """Factor of a vector of norm 1 before it is rounded; its norm is then at most g."""
        return self.grid - math.sqrt(self.d) / 2

    @property
    def count(self) -> int:
        """An image's entry in the count."""
        return round(COUNT_WEIGHT * self.grid)

    @property
    def key(self) -> str:
        """Name of what is summed, for caches."""
        return f"{self.psi.layers} {self.pool} {self.grid} {self.count}"

    def vectors(self, x: Tensor) -> Tensor:
        """Return the pooled ψ of images in [-1, 1]: (n, d), never negative."""
        pooled = []
        for y in self.psi(x):
            size = min(y.shape[-2], self.pool), min(y.shape[-1], self.pool)
            pooled.append((y if y.shape[-2:] == size else F.adaptive_avg_pool2d(y, size)).flatten(1))
        return torch.cat(pooled, 1)

    def pair(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return ψ̂ and ψ̂² of images, each of norm 1 (or 0)."""
        f = self.vectors(x)
        f = f / f.norm(dim=1, keepdim=True).clamp(min=1e-12)
        square = f.square()
        return f, square / square.norm(dim=1, keepdim=True).clamp(min=1e-12)

    def whole(self, pixels: NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
        """Return both parts of images' rows on the grid, as integers in doubles; rows that are not finite are zeros."""
        n = len(pixels)
        if n == 1:  # a batch of one runs other kernels, whose last bits differ; a row must not depend on other images
            pixels = np.concatenate([pixels, pixels])
        with torch.no_grad():
            first, second = self.pair(to_float(pixels).to(self.psi.mean.device))
            return self._on_grid(first[:n]), self._on_grid(second[:n])

    def _on_grid(self, rows: Tensor) -> Tensor:
        """Round rows of norm at most 1 to the grid."""
        usable = rows.isfinite().all(1, keepdim=True)
        return torch.round(torch.where(usable, rows, 0).double() * self.scale)

    def rows(self, pixels: NDArray[np.uint8]) -> Sums:
        """Return each image's row (n, 1 + 2d): what it adds to its class."""
        counts = torch.full((len(pixels), 1), float(self.count), dtype=torch.float64)
        return np.asarray(torch.cat([counts, *(part.cpu() for part in self.whole(pixels))], 1).to(torch.int64))

    def moments(self, x: Tensor, y: Tensor, classes: int) -> FeatureMoments:
        """Return means of ψ̂ and ψ̂² of a batch of fakes by label, differentiable."""
        member = F.one_hot(y, classes).to(x.dtype)
        count = member.sum(0)
        weight = (member / count.clamp(min=1)).T
        first, second = self.pair(x)
        return FeatureMoments(weight @ first, weight @ second, count / len(y))


def pooled_size(plan: LayerPlan, layers: Collection[int], pool: int, shape: tuple[int, ...]) -> int:
    """Return the size of the pooled ψ.

    Args:
        plan: Layers of the feature network.
        layers: Layers that are used.
        pool: Largest side of a pooled feature map.
        shape: Shape of an image.
    """
    (h, w), total = shape[-2:], 0
    for layer, width in enumerate(plan.widths):
        if layer in plan.opens:
            h, w = (h + 1) // 2, (w + 1) // 2
        total += width * min(h, pool) * min(w, pool) * (layer in layers)
    return total


def sensitivity(kinds: int) -> float:
    """Return the largest change of all sums when one image is replaced by another, in units of the grid.

    Features are never negative (ReLU), so two rows of one part have a distance of at most √2·g. With the count's weight
    w, replacing an image changes the sums by at most √(2·(2 + w²))·g; without labels the number of images is constant
    and the bound is 2·g. An image that is added or removed, as when the hold-out split puts an image and its
    replacement on different sides, changes them by at most √(2 + w²)·g, which is less than either bound: the count is
    one of the noised sums and leaves in no other way.

    Args:
        kinds: Number of classes; 1: without labels.

    Examples:
        >>> sensitivity(1), round(sensitivity(10), 4)
        (2.0, 2.031)
    """
    return math.sqrt(2 * (2 + (COUNT_WEIGHT**2 if kinds > 1 else 0)))


def sensitivity_reason(kinds: int) -> str:
    """Return why the sensitivity holds, in words."""
    labels = "the number of images is public"
    if kinds > 1:
        labels = f"counts have weight {COUNT_WEIGHT:g}, and an image and its replacement may have different labels"
    return f"features are at least 0 and each image's two vectors are scaled to norm 1; {labels}"


def class_sums(summary: Summary, pixels: NDArray[np.uint8], labels: NDArray[np.int64], classes: int) -> Sums:
    """Sum the rows of all images by class, a batch at a time.

    Doubles represent integers exactly up to 2^53, which is far above any sum.

    Returns:
        Sums of the shape (classes, 1 + 2d).
    """
    sums = torch.zeros(2, classes, summary.d, dtype=torch.float64, device=summary.psi.mean.device)
    for at in range(0, len(pixels), 64):
        y = torch.from_numpy(np.ascontiguousarray(labels[at : at + 64])).to(sums.device)
        for total, part in zip(sums, summary.whole(pixels[at : at + 64]), strict=True):
            total.index_add_(0, y, part)
    counts = np.bincount(labels, minlength=classes)[:, None] * summary.count
    return np.concatenate([counts, sums[0].cpu().numpy(), sums[1].cpu().numpy()], 1).astype(np.int64)


def noised(sums: Sums, sigma: float, source: Source) -> Sums:
    """Add Gaussian noise to sums, then round to integers.

    Args:
        sums: The sums.
        sigma: σ on the grid of the sums; 0: no noise.
        source: Source of random bytes.
    """
    if not sigma:
        return sums
    noise = gaussian(source, sums.size, sigma).reshape(sums.shape)
    return np.rint(sums + noise).astype(np.int64)


def noise_share(sums: Sums, sigma: float, source: Source, limit: int) -> Sums:
    """Add one client's share of the noise of a secure sum: integers, within ±limit.

    Args:
        sums: The sums.
        sigma: σ of the share on the grid of the sums; 0: no noise.
        source: Source of random bytes.
        limit: Largest magnitude of the result; the sums are clipped to half of it before noise is added.
    """
    share = np.clip(sums, -limit // 2, limit // 2)  # increases no distance between two sums
    if sigma:
        share = share + discrete_gaussian(source, sums.size, sigma).reshape(sums.shape)
    return np.clip(share, -limit, limit)


def estimate(summary: Summary, sums: NDArray[np.float64], sigma: float, device: str = "cpu") -> FeatureMoments:
    """Estimate moments from noised sums. Nothing else enters, so the result is as private as the sums.

    A class whose count is below four times its noise counts as absent. No mean is divided by a true count.

    Args:
        summary: What was summed.
        sums: The noised sums, (classes, 1 + 2d).
        sigma: σ of their noise.
        device: Device of the result.
    """
    d = summary.d
    n = sums[:, 0] / summary.count
    least = max(4 * sigma / summary.count, 0.5)
    there = (n >= least) | (n == n.max())
    n = np.where(there, np.maximum(n, 1.0), 0.0)
    means = np.maximum(sums[:, 1:], 0) / summary.scale / np.maximum(n, 1.0)[:, None] * there[:, None]
    first, second = (torch.from_numpy(part.astype(np.float32)).to(device) for part in (means[:, :d], means[:, d:]))
    return FeatureMoments(first, second, torch.from_numpy((n / n.sum()).astype(np.float32)).to(device))


def raw_loss(real: FeatureMoments, fake: FeatureMoments) -> Tensor:
    """Return Eq. 1 on raw moments: squared distances, weighted by class share (noised variances may be negative)."""
    distance = (real.first - fake.first).square().sum(1) + (real.second - fake.second).square().sum(1)
    return (real.share * (fake.share > 0) * distance).sum()
