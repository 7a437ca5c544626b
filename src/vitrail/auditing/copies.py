"""Does the model copy? Distances of samples to the nearest training image, against those of held-out images.

A held-out image is new by definition. If more than 1% of samples are nearer to the training images than the nearest 1%
of held-out ones, some samples are nearer than new images would be.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.auditing.attack import Figure, Finding, Target
from vitrail.auditing.membership import BATCH, features, random_subset, samples
from vitrail.metrics.evaluation import trained_against
from vitrail.metrics.extractors import Extractor, choose_feature_network, load_extractor
from vitrail.metrics.measure import REPLICATES
from vitrail.models.image_grid import write_grid
from vitrail.nets.feature_moments import to_float
from vitrail.utils.rng import Rng

ABOUT = "distances of samples to the nearest training image, against those of held-out images"
QUANTILE = 0.01
SHOWN = 24  # closest pairs
GRID = "audit-closest-private.png"


class Nearest:
    """The nearest training image of each query image; training images are added a batch at a time."""

    def __init__(self, queries: Tensor) -> None:
        self.queries, self.at = queries, 0
        self.distance = torch.full((len(queries),), torch.inf)
        self.which = torch.zeros(len(queries), dtype=torch.int64)

    def update(self, rows: Tensor) -> None:
        """Add a batch of training images."""
        far, which = torch.cdist(self.queries, rows).min(1)
        better = far < self.distance
        self.distance = torch.where(better, far, self.distance)
        self.which = torch.where(better, which + self.at, self.which)
        self.at += len(rows)


@torch.no_grad()
def attack(target: Target) -> Finding | None:
    """Compare distances; None before there is a model, or with fewer than 100 held-out images."""
    generator, train = target.generator, target.members
    held_out = random_subset(target, target.plan.data.test)
    if generator is None or len(held_out) < 100:
        return None
    extractor = load_extractor(choose_feature_network(target.plan.data.name, trained_against(generator)))
    sampled = torch.cat(samples(generator, target, "copies", train))
    real = to_float(held_out.pixels)
    spaces = {"features": extractor, "pixels": Extractor("pixels", 0, lambda x: x.flatten(1), "")}
    queries = sampled.split(BATCH), real.split(BATCH)
    found = {name: [Nearest(features(e, images)) for images in queries] for name, e in spaces.items()}
    for at in range(0, len(train), BATCH):
        x = to_float(train.pixels[at : at + BATCH])
        for name, extract in spaces.items():
            rows = extract.rows(x)
            for one in found[name]:
                one.update(rows)
        target.report_progress(f"copies: {min(at + BATCH, len(train)):,} of {len(train):,} training images")
    figures = [figure(a.distance.numpy(), b.distance.numpy(), f"in {name}") for name, (a, b) in found.items()]
    by_features, _ = found["features"]
    closest = torch.argsort(by_features.distance)[:SHOWN]
    pairs = torch.stack([sampled[closest], to_float(train.pixels[by_features.which[closest].numpy()])], 1)
    path = target.plan.folder.path / GRID
    if target.plan.folder.path.is_dir():
        write_grid(path, (pairs.flatten(0, 1) + 1) / 2, columns=8)
        path.chmod(0o600)
    note = f"The closest pairs, sample and training image next to each other: {GRID}; it shows private images"
    return Finding("copies", ABOUT, figures=figures, note=note)


def figure(sampled: NDArray[np.floating], held_out: NDArray[np.floating], where: str) -> Figure:
    """Return the share of samples that are nearer to training images than the nearest 1% of held-out ones."""

    def close(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
        return float((a < np.quantile(b, QUANTILE)).mean())

    draw = Rng((0,)).child("bootstrap", "copies").numpy()
    again = [close(*(draw.choice(v, len(v)) for v in (sampled, held_out))) for _ in range(REPLICATES)]
    low, high = np.quantile(again, [0.025, 0.975])  # both kinds are resampled
    note = f"median distance {np.median(sampled):.3g}, of held-out images {np.median(held_out):.3g}"
    name = f"samples nearer than 1% of held-out images, {where}"
    return Figure(name, close(sampled, held_out), float(low), float(high), QUANTILE, note)
