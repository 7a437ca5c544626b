"""Feature networks for evaluation: images to feature vectors. Each measure reports its network."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.dataset import Images
from vitrail.metrics.frechet import Gaussian
from vitrail.nets.feature_moments import to_float
from vitrail.nets.features import choose_features, load_features
from vitrail.nets.precision import Precision
from vitrail.nets.pretrained import weights_digest
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, cached

KEEP = 5000  # rows that are stored for metrics that need more than mean and covariance
BATCH = 250
OWN = ("vitrail-fashion", "vitrail-cifar")  # a registered network never ranks by default


@dataclass(frozen=True)
class Extractor:
    """A named feature network.

    Args:
        name: Its name, which every measure reports.
        dim: Features per image.
        rows: Images (n, channels, height, width) in [-1, 1] to features (n, dim).
        digest: Hash of its weights; it is part of the key of cached features.
    """

    name: str
    dim: int
    rows: Callable[[Tensor], Tensor]
    digest: str


@dataclass
class FeatureSet:
    """Features of a set of images: a Gaussian over all, and the first rows (a random sample) with their labels."""

    gaussian: Gaussian
    rows: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)

    @staticmethod
    def empty(dim: int) -> FeatureSet:
        """Return the features of no images."""
        return FeatureSet(Gaussian.empty(dim))

    def update(self, features: Tensor, labels: Tensor | None) -> None:
        """Add a batch; memory stops growing after KEEP rows."""
        room = KEEP - self.gaussian.n
        self.gaussian.update(features)
        if room > 0:
            self.rows.append(features[:room].float())
            if labels is not None:
                self.labels.append(labels[:room])

    @property
    def stored(self) -> Tensor:
        """The stored rows."""
        return torch.cat(self.rows)


def load_extractor(name: str) -> Extractor:
    """Return a feature network as an extractor: its last layer, averaged over each quarter of the image.

    Args:
        name: One of FEATURES.
    """
    psi = load_features(name)
    psi.layers = (len(psi.plan.widths) - 1,)

    def rows(x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(psi(x)[0], 2).flatten(1)

    return Extractor(name, 4 * psi.plan.widths[-1], rows, weights_digest(psi))


def load_inception_extractor(precision: Precision = "float32") -> Extractor:
    """Return FID's Inception-v3.

    Args:
        precision: Arithmetic of its convolutions.
    """
    from vitrail.nets.inception import TOGETHER, load_inception

    net = load_inception()
    net.precision = precision

    def rows(x: Tensor) -> Tensor:
        """Compute a few images per thread, so that the result does not depend on the number of cores."""
        with ThreadPoolExecutor(os.cpu_count(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return torch.cat(list(pool.map(torch.no_grad()(net), x.split(TOGETHER))))

    return Extractor("inception", net.num_features, rows, f"{weights_digest(net)} {precision}".removesuffix(" float32"))


def choose_feature_network(data_name: str, trained_against: Iterable[str]) -> str:
    """Choose the network of this package that ranks runs on this data: never one that a run was trained against.

    It is the one that `features=auto` does not choose for this data, so that all methods are measured alike.

    Args:
        data_name: The data source.
        trained_against: Names of the networks that the runs were trained against.

    Raises:
        VitrailError: If they were trained against all networks of this package.

    Examples:
        >>> choose_feature_network("mnist", ["vitrail-fashion"]), choose_feature_network("mnist", ["vitrail-cifar"])
        ('vitrail-cifar', 'vitrail-fashion')
    """
    against = set(trained_against)
    usual = [name for name in OWN if name != choose_features(data_name)]
    for name in (*usual, *OWN):
        if name not in against:
            return name
    raise VitrailError(f"the model was trained against all networks of this package ({', '.join(OWN)}); use fid")


@torch.no_grad()
def features_of(extractor: Extractor, images: Images) -> FeatureSet:
    """Return the features of real images, computed once per network and content, then read from the cache."""

    def compute() -> State:
        found = FeatureSet.empty(extractor.dim)
        for pixels, labels in shuffled(images):
            found.update(extractor.rows(to_float(pixels)), labels)
        g = found.gaussian
        labels = torch.cat(found.labels) if found.labels else None
        return {"n": g.n, "total": g.total, "outer": g.outer, "rows": found.stored, "labels": labels}

    tree = cached("features", f"{extractor.digest} {extractor.dim} {KEEP} {images.digest()}", compute)
    gaussian = Gaussian(tree["n"], tree["total"], tree["outer"])
    return FeatureSet(gaussian, [tree["rows"]], [] if tree["labels"] is None else [tree["labels"]])


def shuffled(images: Images) -> Iterable[tuple[NDArray[np.uint8], Tensor | None]]:
    """Yield batches in a fixed random order, so that the first are a random sample of all."""
    order = Rng((0,)).child("fair sample").numpy().permutation(len(images))
    for at in range(0, len(order), BATCH):
        pick = order[at : at + BATCH]
        yield images.pixels[pick], None if images.labels is None else torch.from_numpy(images.labels[pick])
