"""Pictures as each client sees them: its own to fit on, held-out ones to judge."""

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
from vitrail.data.transforms import held_out
from vitrail.metrics.evaluation import split_validation
from vitrail.metrics.measure import Bounded, bootstrap
from vitrail.nets.feature_moments import to_float
from vitrail.utils.rng import Rng


@dataclass(frozen=True)
class View:
    """Pictures of several clients in one row: whose each is, and which picture of the data it shows."""

    pictures: Images
    client: NDArray[np.int64]
    shows: NDArray[np.int64]

    @property
    def x(self) -> Tensor:
        """In [-1, 1], as networks take them."""
        return to_float(self.pictures.pixels)

    def take(self, indices: NDArray[np.int64]) -> View:
        """Those at these positions."""
        return View(self.pictures.take(indices), self.client[indices], self.shows[indices])


@dataclass(frozen=True)
class Views:
    """What clients trained on, and held-out pictures as they would see them; `names` are the clients."""

    names: tuple[str, ...]
    classes: tuple[str, ...]
    train: View
    test: View


def views_of(data: Dataset, shares: Partition, seed: int, names: Sequence[str]) -> Views:
    """Where clients are domains, each sees every held-out picture through its transform; else those of its kind.

    No picture is among them by which a run was watched.
    """
    _, judging = split_validation(data.test)
    order = {name: k for k, name in enumerate(shares.names)}
    train = [(data.train.take(shares.indices[order[name]]), shares.indices[order[name]]) for name in names]
    test = [_seen(replace(data, test=judging), shares, order[name], seed) for name in names]
    return Views(tuple(names), data.classes, _row(train), _row(test))


def _row(parts: Sequence[tuple[Images, NDArray[np.int64]]]) -> View:
    labels = [p.labels for p, _ in parts if p.labels is not None]
    people = [p.identities for p, _ in parts if p.identities is not None]
    pictures = Images(
        np.concatenate([p.pixels for p, _ in parts]),
        np.concatenate(labels) if len(labels) == len(parts) else None,
        identities=np.concatenate(people) if len(people) == len(parts) else None,
    )
    client = np.repeat(np.arange(len(parts)), [len(p) for p, _ in parts])
    return View(pictures, client, np.concatenate([shows for _, shows in parts]))


def _seen(data: Dataset, shares: Partition, client: int, seed: int) -> tuple[Images, NDArray[np.int64]]:
    """The held-out pictures of one client's kind, and their positions."""
    spec, test = parse_partition(shares.spec), data.test
    every = np.arange(len(test))
    if spec.domains:
        return held_out(data, spec.domains[client], seed), every
    if spec.name == "folders" and test.groups is not None:
        every = np.flatnonzero(test.groups == client)
    if spec.name == "attributes" and data.train.attributes is not None and test.attributes is not None:
        held = np.zeros(len(data.train), np.bool_)
        held[shares.indices[client]] = held[shares.server] = True
        has = data.train.attributes
        own = has.any(0) & ~(has & ~held[:, None]).any(0)  # attributes of which it holds every picture
        every = np.flatnonzero(test.attributes[:, own].any(1))
    return test.take(every), every


def mean_over_pictures(hits: NDArray[np.float64], shows: NDArray[np.int64]) -> Bounded:
    """The mean, with an interval over pictures: one that several clients see is one, not several."""
    _, group = np.unique(shows, return_inverse=True)
    each = np.bincount(group, hits) / np.bincount(group)
    return bootstrap([each], Rng((0,)).child("bootstrap", "uses").numpy())


def as_tensor(labels: NDArray[np.int64]) -> Tensor:
    """Whole numbers for torch."""
    return torch.from_numpy(np.ascontiguousarray(labels))
