"""From a data set to who holds what of it, as a run's settings say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitrail.data.dataset import Dataset
from vitrail.data.partitions import Partition, partition
from vitrail.data.specs import parse_partition
from vitrail.utils.rng import Rng

if TYPE_CHECKING:
    from vitrail.experiment.settings import Settings


def partition_from_settings(settings: Settings, data: Dataset) -> tuple[Dataset, Partition, list[str]]:
    """The data as clients see it, who holds which of it, and what a person should know of that."""
    data, shares = partition_dataset(settings, data)
    data, notes = apply_label_mode(settings, data)
    return data, shares, notes


def partition_dataset(settings: Settings, data: Dataset) -> tuple[Dataset, Partition]:
    """Who holds which pictures; where clients are domains, all pictures as their clients have them."""
    rng = Rng((settings.seed,)).child("partition").numpy()
    shares = partition(settings.partition, data, settings.clients, rng, settings.server_fraction)
    if parse_partition(settings.partition).domains:
        from vitrail.data.transforms import in_domains

        data = in_domains(data, shares, Rng((settings.seed,)).child("domains"))
    return data, shares


def apply_label_mode(settings: Settings, data: Dataset) -> tuple[Dataset, list[str]]:
    """The data with labels where the run takes them, and what a person should know of it."""
    notes = _notes(settings, data)
    labelled = settings.labels == "auto" and data.train.labels is not None
    if labelled and settings.partition == "folders" and data.classes == data.groups:
        labelled = False
        notes.append("each sub-folder is a client, and none has sub-folders for labels: trained without labels")
    return (data if labelled else data.without_labels()), notes


def _notes(s: Settings, data: Dataset) -> list[str]:
    """What looks like a misunderstanding."""
    notes = []
    if data.groups and data.groups != data.classes and s.partition != "folders":
        notes.append(
            f"{len(data.groups)} first-level sub-folders are not taken as clients; partition=folders does that"
        )
    if (brightest := int(data.train.pixels.max())) < 32:
        notes.append(
            f"the brightest of all pixels is {brightest} of 255, so pictures are nearly black; "
            "12-bit values in 16-bit files must be rescaled to the full range first"
        )
    return notes
