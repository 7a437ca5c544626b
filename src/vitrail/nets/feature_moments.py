"""First and second moments of features per class, which PRISM's loss (Eq. 1) compares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrail.nets.feature_network import Features
from vitrail.utils.state import State


@dataclass(frozen=True)
class FeatureMoments:
    """E[ψ] and E[ψ²] of each class (classes, d), and each class's share of the images (classes,)."""

    first: Tensor
    second: Tensor
    share: Tensor

    @property
    def variance(self) -> Tensor:
        """Var ψ = E[ψ²] - E[ψ]², the diagonal that the paper calls covariance."""
        return self.second - self.first.square()

    def detach(self) -> FeatureMoments:
        """Return the same numbers without gradients."""
        return FeatureMoments(self.first.detach(), self.second.detach(), self.share)

    def tree(self) -> State:
        """Return the moments as state that can be saved."""
        return {"first": self.first, "second": self.second, "share": self.share}

    @staticmethod
    def from_tree(tree: State, device: str) -> FeatureMoments:
        """Return the moments of a saved state."""
        return FeatureMoments(*(tree[k].to(device) for k in ("first", "second", "share")))

    @staticmethod
    def of_images(
        psi: Features, pixels: NDArray[np.uint8], labels: NDArray[np.int64], classes: int, device: str
    ) -> FeatureMoments:
        """Compute the moments of a client's images in one pass; sums are in double precision."""
        d = psi.dim(pixels.shape[1:])
        first, second = (torch.zeros(classes, d, dtype=torch.float64, device=device) for _ in range(2))
        count = torch.bincount(torch.from_numpy(labels), minlength=classes).to(device, torch.float64)
        with torch.no_grad():
            for at in range(0, len(pixels), 64):
                y = torch.from_numpy(np.ascontiguousarray(labels[at : at + 64])).to(device)
                f = psi.flat(to_float(pixels[at : at + 64]).to(device)).double()
                first.index_add_(0, y, f)
                second.index_add_(0, y, f.square())
        n = count.clamp(min=1)[:, None]
        return FeatureMoments((first / n).float(), (second / n).float(), (count / count.sum()).float())


def to_float(pixels: NDArray[np.uint8]) -> Tensor:
    """Convert bytes to floats in [-1, 1], the range of generators.

    Examples:
        >>> to_float(np.array([0, 255], np.uint8)).tolist()
        [-1.0, 1.0]
    """
    return torch.from_numpy(np.ascontiguousarray(pixels)).float().div_(127.5).sub_(1)


def class_moments(layers: list[Tensor], y: Tensor, classes: int) -> FeatureMoments:
    """Return the moments of a batch's features by label; a class without images has zeros and a share of 0."""
    member = F.one_hot(y, classes).to(layers[0].dtype)
    count = member.sum(0)
    weight = (member / count.clamp(min=1)).T  # (classes, n): row c averages the images of class c
    first: list[Tensor] = []
    second: list[Tensor] = []
    for f in layers:
        last = f.movedim(1, -1)  # channels last, the order in memory of a convolution's outputs
        v = last.flatten(1)
        for averages, of in ((first, v), (second, v.square())):
            averages.append((weight @ of).view(classes, *last.shape[1:]).movedim(-1, 1).flatten(1))
    return FeatureMoments(torch.cat(first, 1), torch.cat(second, 1), count / len(y))


def exponential_average(old: FeatureMoments, new: FeatureMoments, weight: float) -> FeatureMoments:
    """Return the exponential average of moments; the gradient of the new batch is not scaled by the weight.

    A class that the new batch lacks keeps its old moments; one that the old batches lack takes the new ones.
    """
    seen, fresh = old.share > 0, new.share > 0
    w = torch.where(seen, weight, 1.0)[:, None] * fresh[:, None]

    def average(a: Tensor, b: Tensor) -> Tensor:
        return torch.lerp(a, b.detach(), w) + (b - b.detach())

    share = torch.where(fresh, new.share, old.share)
    return FeatureMoments(average(old.first, new.first), average(old.second, new.second), share)


def moment_loss(real: FeatureMoments, fake: FeatureMoments) -> Tensor:
    """Return |μ - μ'|² + |σ² - σ'²|² over all features (Eq. 1), averaged over classes by share of the real images."""
    mean = (real.first - fake.first).square().sum(1)
    variance = (real.variance - fake.variance).square().sum(1)
    return (
        real.share * (fake.share > 0) * (mean + variance)
    ).sum()  # classes without generated images do not count yet
