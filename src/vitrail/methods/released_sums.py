"""Losses on moments of features, of images or of released sums of them: the parts that `prism` and `moments` share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.dataset import Images
from vitrail.methods.masks import MaskMethod
from vitrail.nets.feature_moments import FeatureMoments, exponential_average
from vitrail.nets.feature_network import Features
from vitrail.nets.features import load_features, parse_layers
from vitrail.nets.precision import Precision
from vitrail.nets.pretrained import weights_digest
from vitrail.privacy.feature_sums import Summary, class_sums, estimate, noised, raw_loss
from vitrail.privacy.noise import Source
from vitrail.utils.state import State, cached


class AveragedMoments:
    """Eq. 1 on a running average of the generated images' moments.

    The average is a plain one at first, then exponential.

    Args:
        measure: Moments of a batch of images and labels.
        distance: Distance of two moments.
        real: Moments to match.
        weight: Weight of the newest batch; 1 is Eq. 1 on each batch alone.
        stored: What `state()` returns.
    """

    def __init__(
        self,
        measure: Callable[[Tensor, Tensor], FeatureMoments],
        distance: Callable[[FeatureMoments, FeatureMoments], Tensor],
        real: FeatureMoments,
        weight: float,
        stored: State | None = None,
    ) -> None:
        self.measure, self.distance, self.real, self.weight, self.stored = measure, distance, real, weight, stored or {}
        self.present = torch.nonzero(real.share, as_tuple=True)[0]
        self.smooth: FeatureMoments | None = None
        self.batches = 0

    def __call__(self, fakes: Tensor, y: Tensor) -> Tensor:
        fake = self.measure(fakes, y)
        self.batches += 1
        if self.smooth is not None:
            fake = exponential_average(self.smooth, fake, max(self.weight, 1 / self.batches))
        self.smooth = fake.detach() if self.weight < 1 else None
        return self.distance(self.real, fake)

    def state(self) -> State:
        """Return no averages: those of an earlier generator would be misleading."""
        return self.stored


@cache
def load_public_features(name: str, layers: str, device: str, precision: Precision = "float32") -> tuple[Features, str]:
    """Return the public, frozen network ψ and a digest of its weights; loaded once per process.

    Args:
        name: Name of the feature network.
        layers: "all", or layer indices such as "1,3,7".
        device: Where it runs.
        precision: Arithmetic of its convolutions.
    """
    psi = load_features(name, device=device)
    psi.precision = precision
    psi.layers = parse_layers(name, layers)
    return psi, weights_digest(psi)


def class_labels(data: Images, classes: int) -> NDArray[np.int64]:
    """Return a client's labels; zeros if the run has no classes.

    Args:
        data: The client's images.
        classes: Number of classes of the run; 0 without labels.
    """
    return data.labels if classes and data.labels is not None else np.zeros(len(data), np.int64)


def feature_summary(m: MaskMethod, precision: Precision = "float32") -> Summary:
    """Return the description of what is summed of each image; private images are always summed in float32."""
    psi, _ = load_public_features(m.features, m.layers, m.task.device, precision)
    return Summary(psi, m.pool_size, m.task.shape)


def feature_sums(m: MaskMethod, data: Images) -> NDArray[np.int64]:
    """Return a client's sums before noise, cached by the content of its images."""
    summary, classes = feature_summary(m), m.task.classes
    kinds = max(classes, 1)

    def compute() -> State:
        return {"sums": class_sums(summary, data.pixels, class_labels(data, classes), kinds)}

    _, psi_digest = load_public_features(m.features, m.layers, m.task.device)
    sums: NDArray[np.int64] = cached("sums", f"2 {psi_digest} {summary.key} {kinds} {data.digest()}", compute)["sums"]
    return sums


def released_loss(m: MaskMethod, data: Images, source: Source, weight: float, state: State) -> AveragedMoments:
    """Return the loss against moments that the client noises in its first round and then stores."""
    assert m.mechanism is not None  # noqa: S101
    sigma = m.mechanism.sigma * feature_summary(m).grid
    sums = state["released"] if state else noised(feature_sums(m, data), sigma, source)
    return match_released_sums(m, sums, sigma, weight, {"released": sums})


def match_released_sums(
    m: MaskMethod, sums: NDArray[Any], sigma: float, weight: float, stored: State
) -> AveragedMoments:
    """Return the loss against released sums with noise of this σ."""
    summary, kinds = feature_summary(m, m.precision), max(m.task.classes, 1)
    real = estimate(summary, sums.astype(np.float64), sigma, m.task.device)
    return AveragedMoments(lambda x, y: summary.moments(x, y, kinds), raw_loss, real, weight, stored)
