"""Sums of normalised features: all that a client's pictures enter through, released once.

Every picture becomes one row of whole numbers: its share of the count, ψ̂ = ψ/|ψ| and ψ̂² = ψ²/|ψ²|, pooled to a few
places, times a grid g. Rows are added up by class. Features are never negative (ReLU), so two rows of one part are at
most √2·g apart, and replacing one picture by another moves the sums by at most Δ·g, Δ = √(2·(2 + w²)), w the count's
weight; without labels the number of pictures stays and Δ = 2. An image that is added or removed, as when the hold-out
split puts an image and its replacement on different sides, moves the sums by at most √(2 + w²)·g, which is less than
either Δ: the count is part of the noised sums and leaves in no other way. Whole numbers add up to the same bits however
the pictures are divided among clients.

The idea of releasing feature moments once is that of DP-MERF and DP-MEPF (Harder et al. 2021, 2023); here federated.
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
from vitrail.nets.features import Features, LayerPlan
from vitrail.privacy.noise import Source, discrete_gaussian, gaussian
from vitrail.utils.errors import Malformed
from vitrail.wire.codecs import Array
from vitrail.wire.entropy import decode_values, encode_values

Sums = NDArray[np.int64]
COUNT_WEIGHT = 0.25  # of a picture's count beside its features: class sizes need less accuracy than they would get
FINENESS = 8  # noised sums travel in steps of σ/8: rounding adds 0.13% to the noise's variance


@dataclass(frozen=True)
class Summary:
    """What is summed of a picture: ψ pooled to at most pool x pool places a layer, on a grid of whole numbers."""

    psi: Features
    pool: int
    shape: tuple[int, ...]

    @property
    def d(self) -> int:
        """Numbers in ψ, pooled."""
        return pooled_size(self.psi.plan, self.psi.layers, self.pool, self.shape)

    @property
    def grid(self) -> int:
        """g: fine enough that rounding, at most √d/2 in norm, takes less than half a per cent of it."""
        return int(2 ** math.ceil(math.log2(128 * math.sqrt(self.d))))

    @property
    def scale(self) -> float:
        """What a vector of norm 1 is multiplied by before it is rounded: its norm is then at most g."""
        return self.grid - math.sqrt(self.d) / 2

    @property
    def count(self) -> int:
        """A picture's entry in the count."""
        return round(COUNT_WEIGHT * self.grid)

    @property
    def key(self) -> str:
        """Names what is summed, for caches."""
        return f"{self.psi.layers} {self.pool} {self.grid} {self.count}"

    def vectors(self, x: Tensor) -> Tensor:
        """ψ of pictures in [-1, 1], pooled: (n, d), never negative."""
        pooled = []
        for y in self.psi(x):
            size = min(y.shape[-2], self.pool), min(y.shape[-1], self.pool)
            pooled.append((y if y.shape[-2:] == size else F.adaptive_avg_pool2d(y, size)).flatten(1))
        return torch.cat(pooled, 1)

    def pair(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """ψ̂ and ψ̂² of pictures, each of norm 1 (or 0)."""
        f = self.vectors(x)
        f = f / f.norm(dim=1, keepdim=True).clamp(min=1e-12)
        square = f.square()
        return f, square / square.norm(dim=1, keepdim=True).clamp(min=1e-12)

    def whole(self, pixels: NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
        """Both parts of images' rows on the grid, as integers in doubles; rows that are not finite become zeros."""
        n = len(pixels)
        if n == 1:  # a batch of one runs other kernels, whose last bits differ; a row must not depend on other images
            pixels = np.concatenate([pixels, pixels])
        with torch.no_grad():
            first, second = self.pair(to_float(pixels).to(self.psi.mean.device))
            return self._on_grid(first[:n]), self._on_grid(second[:n])

    def _on_grid(self, rows: Tensor) -> Tensor:
        """Rows of norm at most 1 as whole numbers."""
        usable = rows.isfinite().all(1, keepdim=True)
        return torch.round(torch.where(usable, rows, 0).double() * self.scale)

    def rows(self, pixels: NDArray[np.uint8]) -> Sums:
        """Each picture's row (n, 1 + 2d): what it adds to its class."""
        counts = torch.full((len(pixels), 1), float(self.count), dtype=torch.float64)
        rows: Sums = torch.cat([counts, *(part.cpu() for part in self.whole(pixels))], 1).to(torch.int64).numpy()
        return rows

    def moments(self, x: Tensor, y: Tensor, classes: int) -> FeatureMoments:
        """Means of ψ̂ and ψ̂² of a batch of fakes by label, differentiable."""
        member = F.one_hot(y, classes).to(x.dtype)
        count = member.sum(0)
        weight = (member / count.clamp(min=1)).T
        first, second = self.pair(x)
        return FeatureMoments(weight @ first, weight @ second, count / len(y))


def pooled_size(plan: LayerPlan, layers: Collection[int], pool: int, shape: tuple[int, ...]) -> int:
    """Numbers in ψ of a picture of this shape, pooled."""
    (h, w), total = shape[-2:], 0
    for layer, width in enumerate(plan.widths):
        if layer in plan.opens:
            h, w = (h + 1) // 2, (w + 1) // 2
        total += width * min(h, pool) * min(w, pool) * (layer in layers)
    return total


def sensitivity(kinds: int) -> float:
    """How far the sums of all classes move when one picture is replaced by another, in units of the grid.

    >>> sensitivity(1), round(sensitivity(10), 4)
    (2.0, 2.031)
    """
    return math.sqrt(2 * (2 + (COUNT_WEIGHT**2 if kinds > 1 else 0)))


def why(kinds: int) -> str:
    """Why that holds."""
    labels = f", counts weighted {COUNT_WEIGHT:g}, in any two classes" if kinds > 1 else ", the count is public"
    return f"features are at least 0 and each picture's two vectors are scaled to norm 1{labels}"


def class_sums(summary: Summary, pixels: NDArray[np.uint8], labels: NDArray[np.int64], classes: int) -> Sums:
    """The rows of all pictures, added up by class: (classes, 1 + 2d); one pass, a batch in memory.

    Doubles hold whole numbers exactly up to 2^53, which is far above any sum.
    """
    sums = torch.zeros(2, classes, summary.d, dtype=torch.float64, device=summary.psi.mean.device)
    for at in range(0, len(pixels), 64):
        y = torch.from_numpy(np.ascontiguousarray(labels[at : at + 64])).to(sums.device)
        for total, part in zip(sums, summary.whole(pixels[at : at + 64]), strict=True):
            total.index_add_(0, y, part)
    counts = np.bincount(labels, minlength=classes)[:, None] * summary.count
    whole: Sums = np.concatenate([counts, sums[0].cpu().numpy(), sums[1].cpu().numpy()], 1).astype(np.int64)
    return whole


def noised(sums: Sums, sigma: float, source: Source) -> Sums:
    """Sums with Gaussian noise, then rounded: to whole numbers, so rounding is of what is private already."""
    if not sigma:
        return sums
    noise = gaussian(source, sums.size, sigma).reshape(sums.shape)
    return np.rint(sums + noise).astype(np.int64)


def noise_share(sums: Sums, sigma: float, source: Source, limit: int) -> Sums:
    """Sums within ±limit with whole-number noise: one client's share of the noise of a secure sum."""
    share = np.clip(sums, -limit // 2, limit // 2)  # moves no two sums further apart
    if sigma:
        share = share + discrete_gaussian(source, sums.size, sigma).reshape(sums.shape)
    return np.clip(share, -limit, limit)


def estimate(summary: Summary, sums: NDArray[np.float64], sigma: float, device: str = "cpu") -> FeatureMoments:
    """Moments from sums that carry noise of this σ: computed from nothing else, so as private as they are.

    A class whose count is below four times its noise is taken as absent; no mean is divided by a true count.
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
    """Eq. 1 on raw moments, because noisy variances go below zero: squared distances of both, by class share."""
    apart = (real.first - fake.first).square().sum(1) + (real.second - fake.second).square().sum(1)
    return (real.share * (fake.share > 0) * apart).sum()


@dataclass(frozen=True)
class Plausible:
    """What an honest client's noised sums look like; a client's reply that does not is refused by the server.

    Each image adds a vector of norm at most g, without negative elements, to either part of its class, so a part of a
    class of n images has a norm of at most n·g. Noise of this σ, and rounding to the steps that `pack` takes, are
    allowed for: an honest reply is refused with probability below 1e-9.

    Args:
        d: Elements of one part.
        grid: g.
        count: An image's entry in the count.
        sigma: σ of the noise that a client adds; 0 for none.
        most: Images of one class that a client may have.
        total: Images that a client may have in all; 0 where that is not known.
    """

    d: int
    grid: int
    count: int
    sigma: float
    most: int
    total: int = 0

    def check(self, sums: Sums) -> None:
        """Check one client's sums, (classes, 1 + 2d).

        Raises:
            Malformed: The sums cannot be those of as many images as they count, or they count too many.
        """
        from scipy.special import chdtri, ndtri

        rows = sums.astype(np.float64)
        kinds = len(rows)
        tail = -float(ndtri(2e-10 / sums.size)) * self.sigma  # of any single element
        ball = math.sqrt(float(chdtri(self.d, 2e-10 / (2 * kinds)))) * self.sigma  # of the noise on one part
        largest = self.most * self.grid + tail
        step = max(1.0, self.sigma / FINENESS + 0.5, largest / 32767 + 1) if self.sigma else 0.0
        slack = tail + step / 2 + 0.5 * bool(self.sigma)  # the noised sums are rounded, then their steps are
        counted = rows[:, 0]
        if counted.max() > self.most * self.count + slack:
            raise Malformed(
                f"it counts {counted.max() / self.count:,.0f} images of one class; at most {self.most:,} are accepted"
            )
        if self.total and counted.sum() > self.total * self.count + kinds * slack:
            raise Malformed(f"it counts {counted.sum() / self.count:,.0f} images; at most {self.total:,} are accepted")
        if rows.min() < -slack:
            raise Malformed(f"its sums go down to {rows.min() / self.grid:.4g} images; features are never negative")
        images = (np.maximum(counted, 0.0) + slack) / self.count  # no class has more
        allowed = 1.001 * images * self.grid + ball + (slack - tail) * math.sqrt(self.d)
        for part in (rows[:, 1 : 1 + self.d], rows[:, 1 + self.d :]):
            norms = np.linalg.norm(part, axis=1)
            if (norms > allowed).any():
                worst = int(np.argmax(norms - allowed))
                raise Malformed(
                    f"its sums of class {worst} need at least {norms[worst] / self.grid:,.0f} images; it counts "
                    f"{counted[worst] / self.count:,.0f}"
                )


# -- on the wire -------------------------------------------------------------------------------------------------------

PLAIN = 0  # in place of a step: whole numbers as they are


def pack(sums: Sums, sigma: float) -> NDArray[np.uint8]:
    """Sums as bytes: in steps of a fraction of the noise and entropy-coded, or, without noise, exactly.

    >>> few = np.array([5, -70000, 12])
    >>> unpack(pack(few, 0.0), 3).tolist(), unpack(pack(few, 80.0), 3).tolist()
    ([5, -70000, 12], [0, -70000, 10])
    """
    flat = sums.reshape(-1)
    if not sigma:
        return np.concatenate([np.zeros(4, np.uint8), flat.astype("<i8").view(np.uint8)])
    step = max(1, round(sigma / FINENESS), -(-int(np.abs(flat).max()) // 32767))
    coded = encode_values(np.rint(flat / step).astype(np.int16))
    return np.concatenate([np.array([step], "<u4").view(np.uint8), coded])


def unpack(payload: Array, n: int) -> Sums:
    """The n sums again."""
    if len(payload) < 5:
        raise Malformed(f"{len(payload)} bytes are not {n} sums")
    step = int(np.frombuffer(payload[:4].tobytes(), "<u4")[0])
    if step == PLAIN:
        if len(payload) != 4 + 8 * n:
            raise Malformed(f"{len(payload)} bytes are not {n} plain sums")
        return np.frombuffer(payload[4:].tobytes(), "<i8").astype(np.int64)
    return decode_values(payload[4:], n).astype(np.int64) * step
