"""Partition a dataset over clients as a run's settings define, and decide whether its labels are used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitrail.data.dataset import Dataset
from vitrail.data.partitions import Partition, partition
from vitrail.data.specs import parse_partition
from vitrail.utils.rng import Rng

if TYPE_CHECKING:
    from vitrail.experiment.settings import Settings


def partition_from_settings(settings: Settings, data: Dataset) -> tuple[Dataset, Partition, list[str]]:
    """Return the data as clients have it, which client has which images, and warnings about it."""
    data, shares = partition_dataset(settings, data)
    data, notes = apply_label_mode(settings, data)
    return data, shares, notes


def partition_dataset(settings: Settings, data: Dataset) -> tuple[Dataset, Partition]:
    """Return which client has which images; where clients are domains, the data with each domain's transform."""
    rng = Rng((settings.seed,)).child("partition").numpy()
    shares = partition(settings.partition, data, settings.clients, rng, settings.server_fraction)
    if parse_partition(settings.partition).domains:
        from vitrail.data.transforms import apply_client_transforms

        data = apply_client_transforms(data, shares, Rng((settings.seed,)).child("domains"))
    return data, shares


def apply_label_mode(settings: Settings, data: Dataset) -> tuple[Dataset, list[str]]:
    """Return the data, without labels if the run does not use them, and warnings about it."""
    notes = []
    if data.groups and data.groups != data.classes and settings.partition != "folders":
        notes.append(f"{len(data.groups)} first-level sub-folders are not used as clients; partition=folders does that")
    if (brightest := int(data.train.pixels.max())) < 32:
        notes.append(
            f"the brightest of all pixels is {brightest} of 255, so images are nearly black; "
            "12-bit values must be rescaled to the full range first"
        )
    labelled = settings.labels == "auto" and data.train.labels is not None
    if labelled and settings.partition == "folders" and data.classes == data.groups:
        labelled = False
        notes.append("each sub-folder is a client, and none has sub-folders for labels: trained without labels")
    return (data if labelled else data.without_labels()), notes
