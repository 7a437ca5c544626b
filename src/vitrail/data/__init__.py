"""Pictures: where they come from, and which client holds which."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.data.catalog import PARTITIONS, SOURCES
    from vitrail.data.dataset import Dataset, Images
    from vitrail.data.from_python import from_arrays, from_torch
    from vitrail.data.loading import load
    from vitrail.data.partition_plot import draw_partition
    from vitrail.data.partitions import Partition, partition
    from vitrail.data.specs import parse_partition, parse_source

__all__ = [
    "PARTITIONS",
    "SOURCES",
    "Dataset",
    "Images",
    "Partition",
    "draw_partition",
    "from_arrays",
    "from_torch",
    "load",
    "parse_partition",
    "parse_source",
    "partition",
]

_WHERE = {
    "PARTITIONS": "catalog",
    "SOURCES": "catalog",
    "Dataset": "dataset",
    "Partition": "partitions",
    "Images": "dataset",
    "draw_partition": "partition_plot",
    "from_arrays": "from_python",
    "from_torch": "from_python",
    "load": "loading",
    "parse_partition": "specs",
    "parse_source": "specs",
    "partition": "partitions",
}


def __getattr__(name: str) -> object:
    """Import what is asked for when it is asked for: the command line must answer before NumPy is loaded."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"vitrail.data.{_WHERE[name]}"), name)
