"""Evaluation of given images instead of a generator's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data import load as load_data
from vitrail.data.dataset import Dataset, Images
from vitrail.metrics.evaluation import evaluate
from vitrail.metrics.results_io import Column
from vitrail.utils.rng import Rng

KINDS = ("npz:", "folder:", "hf:")


@dataclass(frozen=True)
class Samples:
    """Given images instead of a generator's, with their own labels."""

    images: Images
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    about: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(data: Dataset) -> Samples:
        """Return all images of a data set."""
        pixels = np.concatenate([data.train.pixels, data.test.pixels])
        own = [part.labels for part in (data.train, data.test) if part.labels is not None]
        labels = np.concatenate(own) if len(own) == 2 else None
        return Samples(Images(pixels, labels), data.shape, data.classes if labels is not None else ())

    def batches(self, n: int, label: Any = None, seed: int = 0) -> Iterator[tuple[Tensor, Tensor | None]]:  # noqa: ARG002
        """Yield n of the images in [0, 1], at random."""
        order = Rng((seed,)).child("samples").numpy().permutation(len(self.images))[:n]
        for at in range(0, len(order), 256):
            some = self.images.take(order[at : at + 256])
            yield (
                torch.from_numpy(some.pixels).float() / 255,
                None if some.labels is None else torch.from_numpy(some.labels),
            )


def load_samples(spec: str, real: Dataset) -> Samples:
    """Load given images in the size of the data that they imitate.

    Classes 0, 1, ... are positions in the data's classes, if the data has as many named ones.

    Args:
        spec: `npz:FILE`, `folder:PATH` or `hf:NAME`.
        real: The data.

    Returns:
        The images.
    """
    samples = Samples.of(load_data(spec, size=real.shape[1]))
    positions = tuple(map(str, range(len(real.classes))))
    if samples.classes != positions or any(name.isdigit() for name in real.classes):
        return samples
    return replace(samples, classes=real.classes)


def evaluate_samples(
    spec: str, data: str, *, n: int = 5000, families: Iterable[str] | None = None, **more: Any
) -> tuple[Dataset, list[Column]]:
    """Measure given images against test images of the data.

    Args:
        spec: `npz:FILE`, `folder:PATH` or `hf:NAME`; images are resized to the size of the data.
        data: The data source of the real images.
        n: Largest number of given images.
        families: Names of METRICS; by default as in `evaluate`.
        **more: Other options of `evaluate`.

    Returns:
        The data and one column of measures. It is not known which network the images were trained against.
    """
    real = load_data(data)
    samples = load_samples(spec, real)
    chosen = None if families is None else list(families)
    measures = evaluate(samples, real, min(n, len(samples.images)), chosen, **more)
    name = f"{len(samples.images):,} given images (feature network of their training unknown)"
    options = {"n": n, "families": chosen}
    return real, [Column(name, spec.partition(":")[2], samples.images.digest(), options, measures)]
