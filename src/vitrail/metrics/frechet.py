"""Distances between two sets of feature vectors: Fréchet (Heusel et al. 2017) and kernel (Bińkowski et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.metrics.measure import GROUPS

BIASED = "biased upwards"
FEW = 10  # samples per dimension below which a Fréchet distance is marked


@dataclass
class Gaussian:
    """Mean and covariance of feature vectors, accumulated over batches in double precision.

    Args:
        n: Number of vectors.
        total: Their sum.
        outer: The sum of their outer products.

    Examples:
        >>> g = Gaussian.empty(2)
        >>> g.update(torch.tensor([[0.0, 0.0], [2.0, 0.0]]))
        >>> g.update(torch.tensor([[1.0, 3.0]]))
        >>> g.mean.tolist(), g.covariance.tolist()
        ([1.0, 1.0], [[1.0, 0.0], [0.0, 3.0]])
    """

    n: int
    total: Tensor
    outer: Tensor

    @staticmethod
    def empty(dim: int) -> Gaussian:
        """Return the Gaussian of no vectors."""
        return Gaussian(0, torch.zeros(dim, dtype=torch.float64), torch.zeros(dim, dim, dtype=torch.float64))

    @staticmethod
    def of(features: Tensor) -> Gaussian:
        """Return the Gaussian of all rows."""
        g = Gaussian.empty(features.shape[1])
        g.update(features)
        return g

    def update(self, features: Tensor) -> None:
        """Add a batch, one row per image."""
        f = features.double()
        self.n += len(f)
        self.total += f.sum(0)
        self.outer += f.T @ f

    @property
    def mean(self) -> Tensor:
        """μ."""
        return self.total / self.n

    @property
    def covariance(self) -> Tensor:
        """Σ, unbiased."""
        return (self.outer - self.n * torch.outer(self.mean, self.mean)) / (self.n - 1)


def frechet(a: Gaussian, b: Gaussian) -> float:
    """Return the Fréchet distance |μ_a - μ_b|² + tr(Σ_a + Σ_b - 2 (Σ_a Σ_b)^½).

    The last trace is that of (Σ_a^½ Σ_b Σ_a^½)^½, which is symmetric: its eigenvalues are real, and faster to compute
    than those of Σ_a Σ_b.

    Examples:
        >>> a, b = (Gaussian.of(torch.tensor([[0.0], [2.0]]) + shift) for shift in (0, 3))
        >>> round(frechet(a, b), 6)
        9.0
    """
    sigma_b, root = b.covariance, _root(a.covariance)
    cross = torch.linalg.eigvalsh(root @ sigma_b @ root).clamp(min=0).sqrt().sum()
    return float((a.mean - b.mean).square().sum() + a.covariance.trace() + sigma_b.trace() - 2 * cross)


def _root(sigma: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(sigma)
    root: Tensor = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    return root


def frechet_without(rows: Tensor, other: Gaussian) -> list[float]:
    """Return the distances of a set to another without each of its GROUPS.

    The other's root R is computed once. The eigenvalues of R Σ R are those of XᵀX, where X are the centred rows times
    R, or of XXᵀ if that is smaller.
    """
    rows, root, sigma = rows.double(), _root(other.covariance), other.covariance.trace()
    turned, group, found = rows @ root, torch.arange(len(rows)) % GROUPS, []
    gram = turned @ turned.T if len(rows) < rows.shape[1] else None
    for i in range(GROUPS):
        rest = group != i
        n, mean = int(rest.sum()), rows[rest].mean(0)
        if gram is not None:
            part = gram[rest][:, rest]
            part = part - part.mean(0) - part.mean(1, keepdim=True) + part.mean()
        else:
            centred = turned[rest] - turned[rest].mean(0)
            part = centred.T @ centred
        cross = torch.linalg.eigvalsh(part / (n - 1)).clamp(min=0).sqrt().sum()
        spread = (rows[rest] - mean).square().sum() / (n - 1)
        found.append(float((mean - other.mean).square().sum() + spread + sigma - 2 * cross))
    return found


def few_samples(dim: int, n_real: int, n_fake: int) -> str:
    """Return a note on a Fréchet distance of too few samples for its dimension, or an empty string.

    Examples:
        >>> few_samples(2048, 10_000, 2_000)
        'biased upwards: 2,000 samples for 2,048 dimensions; compare only with values at the same counts'
        >>> few_samples(384, 8_000, 5_000)
        ''
    """
    n = min(n_real, n_fake)
    if n >= FEW * dim:
        return ""
    return f"{BIASED}: {n:,} samples for {dim:,} dimensions; compare only with values at the same counts"


def kernel_distance(real: Tensor, fake: Tensor) -> tuple[float, list[list[float]]]:
    """Return KID, the unbiased squared MMD under the kernel (x·y/d + 1)³ over all pairs, for equally large sets.

    Returns:
        The distance, and the distances without each group of the real set and of the generated set.
    """
    from torchmetrics.image.kid import maximum_mean_discrepancy, poly_kernel

    real, fake = real.double(), fake.double()
    k_rr, k_rf, k_ff = poly_kernel(real, real), poly_kernel(real, fake), poly_kernel(fake, fake)
    value = float(maximum_mean_discrepancy(k_rr, k_rf, k_ff))
    group = torch.eye(GROUPS, dtype=torch.float64)[torch.arange(len(real)) % GROUPS]
    s_rr, s_rf, s_ff = (group.T @ k @ group for k in (_no_pair(k_rr), k_rf, _no_pair(k_ff)))  # sums by pairs of groups
    size = group.sum(0)

    def of(r: Tensor, f: Tensor) -> float:
        n, m = float(r @ size), float(f @ size)
        return float(r @ s_rr @ r / (n * (n - 1)) + f @ s_ff @ f / (m * (m - 1)) - 2 * (r @ s_rf @ f) / (n * m))

    every = torch.ones(GROUPS, dtype=torch.float64)
    without = every - torch.eye(GROUPS, dtype=torch.float64)
    return value, [[of(w, every) for w in without], [of(every, w) for w in without]]


def _no_pair(kernel: Tensor) -> Tensor:
    """Remove the pairs of an image with itself."""
    return kernel - torch.diag(kernel.diagonal())
