"""Networks that measure: pictures to feature vectors. A distance means nothing without the name of its network."""

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
from vitrail.nets.features import FEATURES, choose_features, load_features
from vitrail.nets.pretrained import weights_digest
from vitrail.utils.cache import remember
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

KEEP = 5000  # rows that are kept for what needs more than mean and covariance
BATCH = 250
OWN = tuple(name for name in FEATURES if name.startswith("vitrail-"))


@dataclass(frozen=True)
class Extractor:
    """A named network: pictures in [-1, 1] to one row each."""

    name: str
    dim: int
    rows: Callable[[Tensor], Tensor]
    digest: str  # of its weights


@dataclass
class FeatureSet:
    """Features of a set of pictures: Gaussian over all, and the first rows (a fair sample) with their labels."""

    gaussian: Gaussian
    rows: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)

    @staticmethod
    def empty(dim: int) -> FeatureSet:
        """No pictures yet."""
        return FeatureSet(Gaussian.empty(dim))

    def update(self, features: Tensor, labels: Tensor | None) -> None:
        """Take in a batch; memory stops growing after KEEP rows."""
        room = KEEP - self.gaussian.n
        self.gaussian.update(features)
        if room > 0:
            self.rows.append(features[:room].float())
            if labels is not None:
                self.labels.append(labels[:room])

    @property
    def kept(self) -> Tensor:
        """The kept rows."""
        return torch.cat(self.rows)


def own(name: str) -> Extractor:
    """A network of ours: its last layer, averaged over each quarter of the picture, so that places count."""
    psi = load_features(name)
    psi.layers = (len(psi.plan.widths) - 1,)

    def rows(x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(psi(x)[0], 2).flatten(1)

    return Extractor(name, 4 * psi.plan.widths[-1], rows, weights_digest(psi))


def inception() -> Extractor:
    """FID's Inception-v3."""
    from vitrail.nets.inception import TOGETHER, load_inception

    net = load_inception()

    def rows(x: Tensor) -> Tensor:
        """A few pictures in each thread, so that the number of cores changes no bit."""
        with ThreadPoolExecutor(os.cpu_count(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return torch.cat(list(pool.map(torch.no_grad()(net), x.split(TOGETHER))))

    return Extractor("inception", net.num_features, rows, weights_digest(net))


def choose_ruler(data_name: str, trained_against: Iterable[str]) -> str:
    """The network of ours that ranks runs on this data: never one that the run was trained against.

    It is the one that `features=auto` does not take for this data, so that all methods are measured alike.

    >>> choose_ruler("mnist", ["vitrail-fashion"]), choose_ruler("mnist", []), choose_ruler("mnist", ["vitrail-cifar"])
    ('vitrail-cifar', 'vitrail-cifar', 'vitrail-fashion')
    """
    against = set(trained_against)
    usual = [name for name in OWN if name != choose_features(data_name)]
    for name in (*usual, *OWN):
        if name not in against:
            return name
    raise VitrailError(f"this model was trained against all networks of ours ({', '.join(OWN)}); measure it by fid")


@torch.no_grad()
def features_of(extractor: Extractor, pictures: Images) -> FeatureSet:
    """Features of real pictures, computed once for this network and content, then read from the cache."""

    def compute() -> State:
        found = FeatureSet.empty(extractor.dim)
        for pixels, labels in shuffled(pictures):
            found.update(extractor.rows(to_float(pixels)), labels)
        g = found.gaussian
        labels = torch.cat(found.labels) if found.labels else None
        return {"n": g.n, "total": g.total, "outer": g.outer, "rows": found.kept, "labels": labels}

    tree = remember("features", f"{extractor.digest} {extractor.dim} {KEEP} {pictures.digest()}", compute)
    gaussian = Gaussian(tree["n"], tree["total"], tree["outer"])
    return FeatureSet(gaussian, [tree["rows"]], [] if tree["labels"] is None else [tree["labels"]])


def shuffled(pictures: Images) -> Iterable[tuple[NDArray[np.uint8], Tensor | None]]:
    """Batches in a fixed random order, so that the first are a fair sample of all."""
    order = Rng((0,)).child("fair sample").numpy().permutation(len(pictures))
    for at in range(0, len(order), BATCH):
        pick = order[at : at + BATCH]
        yield pictures.pixels[pick], None if pictures.labels is None else torch.from_numpy(pictures.labels[pick])
