"""Images: data sources, partitions among clients, and transforms."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from vitrail.data.partitions import PARTITIONS, Partition, partition
from vitrail.data.sources import SOURCES
from vitrail.data.specs import parse_partition, parse_source
from vitrail.data.transforms import TRANSFORMS

if TYPE_CHECKING:
    from vitrail.data.dataset import Dataset, Images
    from vitrail.data.from_python import from_arrays, from_torch
    from vitrail.data.loading import load
    from vitrail.data.partition_plot import plot_partition
    from vitrail.data.partition_request import PartitionRequest
    from vitrail.data.read_request import ReadRequest

__all__ = [
    "PARTITIONS", "SOURCES", "TRANSFORMS", "Dataset", "Images", "Partition", "PartitionRequest", "ReadRequest",
    "from_arrays", "from_torch", "load", "parse_partition", "parse_source", "partition", "plot_partition",
]  # fmt: skip

_WHERE = {
    "Dataset": "dataset", "Images": "dataset", "PartitionRequest": "partition_request", "ReadRequest": "read_request",
    "from_arrays": "from_python", "from_torch": "from_python", "load": "loading", "plot_partition": "partition_plot",
}  # fmt: skip


def __getattr__(name: str) -> object:
    """Import a name on first use, so that the command line answers before NumPy is loaded."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"vitrail.data.{_WHERE[name]}"), name)
