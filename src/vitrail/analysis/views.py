"""Images as each client sees them: its training images to fit on, held-out images to test on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.dataset import Dataset, Images
from vitrail.data.partitions import Partition
from vitrail.data.specs import parse_partition
from vitrail.data.transforms import transformed_test_images
from vitrail.metrics.evaluation import split_validation
from vitrail.metrics.measure import Bounded, bootstrap
from vitrail.nets.feature_moments import to_float
from vitrail.utils.rng import Rng


@dataclass(frozen=True)
class View:
    """Images of several clients, concatenated.

    Args:
        images: The images, transformed as the clients see them.
        client: Index of each image's client.
        source: Index of each image in the data set; images of several clients can have the same source.
    """

    images: Images
    client: NDArray[np.int64]
    source: NDArray[np.int64]

    @property
    def x(self) -> Tensor:
        """The images in [-1, 1], as networks take them."""
        return to_float(self.images.pixels)

    def take(self, indices: NDArray[np.int64]) -> View:
        """Return the images at these positions."""
        return View(self.images.take(indices), self.client[indices], self.source[indices])


@dataclass(frozen=True)
class Views:
    """Training images of clients, and held-out images as these clients would see them.

    Args:
        names: The clients; `View.client` indexes them.
        classes: Names of the labels.
        train: Training images.
        test: Held-out images.
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    train: View
    test: View


def make_views(data: Dataset, partition: Partition, seed: int, names: Sequence[str]) -> Views:
    """Collect the images of clients.

    Where clients are domains, each sees all held-out images through its transform; otherwise, where the partition
    defines it, those of its kind. Images that were used for evaluation during training are excluded.

    Args:
        data: The run's data.
        partition: How the run divided them.
        seed: The run's seed, from which random transforms are drawn.
        names: The clients to include.
    """
    _, test_part = split_validation(data.test)
    order = {name: k for k, name in enumerate(partition.names)}
    train = [(data.train.take(partition.indices[order[name]]), partition.indices[order[name]]) for name in names]
    test = [_held_out_of(replace(data, test=test_part), partition, order[name], seed) for name in names]
    return Views(tuple(names), data.classes, _concatenate(train), _concatenate(test))


def _concatenate(parts: Sequence[tuple[Images, NDArray[np.int64]]]) -> View:
    labels = [p.labels for p, _ in parts if p.labels is not None]
    identities = [p.identities for p, _ in parts if p.identities is not None]
    images = Images(
        np.concatenate([p.pixels for p, _ in parts]),
        np.concatenate(labels) if len(labels) == len(parts) else None,
        identities=np.concatenate(identities) if len(identities) == len(parts) else None,
    )
    client = np.repeat(np.arange(len(parts)), [len(p) for p, _ in parts])
    return View(images, client, np.concatenate([source for _, source in parts]))


def _held_out_of(data: Dataset, partition: Partition, client: int, seed: int) -> tuple[Images, NDArray[np.int64]]:
    """Return the held-out images of one client's kind, and their positions."""
    spec, test = parse_partition(partition.spec), data.test
    every = np.arange(len(test))
    if spec.domains:
        return transformed_test_images(data, spec.domains[client], seed), every
    if spec.name == "folders" and test.groups is not None:
        every = np.flatnonzero(test.groups == client)
    if spec.name == "attributes" and data.train.attributes is not None and test.attributes is not None:
        available = np.zeros(len(data.train), np.bool_)
        available[partition.indices[client]] = available[partition.server] = True
        has = data.train.attributes
        own = has.any(0) & ~(has & ~available[:, None]).any(0)  # attributes of which it has every image
        every = np.flatnonzero(test.attributes[:, own].any(1))
    return test.take(every), every


def mean_over_images(values: NDArray[np.float64], source: NDArray[np.int64]) -> Bounded:
    """Return the mean with a bootstrap interval over source images: one that several clients see counts once.

    Args:
        values: One value per image.
        source: The source of each image (`View.source`).
    """
    _, group = np.unique(source, return_inverse=True)
    each = np.bincount(group, values) / np.bincount(group)
    return bootstrap([each], Rng((0,)).child("bootstrap", "uses").numpy())


def as_tensor(labels: NDArray[np.int64]) -> Tensor:
    """Return integer labels as a tensor."""
    return torch.from_numpy(np.ascontiguousarray(labels))
