"""Pictures that were made elsewhere, measured as a generator's would be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
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
    """Given pictures in place of a generator's; their labels are their own."""

    pictures: Images
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    about: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(data: Dataset) -> Samples:
        """All pictures of a data set."""
        pixels = np.concatenate([data.train.pixels, data.test.pixels])
        own = [part.labels for part in (data.train, data.test) if part.labels is not None]
        labels = np.concatenate(own) if len(own) == 2 else None
        return Samples(Images(pixels, labels), data.shape, data.classes if labels is not None else ())

    def batches(self, n: int, label: Any = None, seed: int = 0) -> Iterator[tuple[Tensor, Tensor | None]]:  # noqa: ARG002
        """n of the pictures in [0, 1], at random."""
        order = Rng((seed,)).child("samples").numpy().permutation(len(self.pictures))[:n]
        for at in range(0, len(order), 256):
            some = self.pictures.take(order[at : at + 256])
            yield (
                torch.from_numpy(some.pixels).float() / 255,
                None if some.labels is None else torch.from_numpy(some.labels),
            )


def evaluate_samples(
    spec: str, data: str, *, n: int = 5000, families: Iterable[str] | None = None, **more: Any
) -> tuple[Dataset, list[Column]]:
    """Measure the pictures that `npz:FILE`, `folder:PATH` or `hf:NAME` names against held-out pictures of the data.

    They are made as large as the data is. What they were trained against is not known.
    """
    real = load_data(data)
    samples = Samples.of(load_data(spec, size=real.shape[1]))
    chosen = None if families is None else list(families)
    measures = evaluate(samples, real, min(n, len(samples.pictures)), chosen, **more)
    name = f"{len(samples.pictures):,} given pictures (what they were trained against is not known)"
    asked = {"n": n, "families": chosen}
    return real, [Column(name, spec.partition(":")[2], samples.pictures.digest(), asked, measures)]
