"""The argument of a partition function: what to divide, and among how many clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrail.data.dataset import Dataset
from vitrail.data.specs import PartitionSpec
from vitrail.utils.errors import VitrailError, nearest

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class PartitionRequest:
    """A request to a partition; see `PARTITIONS` for an example.

    Args:
        spec: The parsed `partition=` setting; `spec.argument` is the text after the colon.
        data: The data set.
        pool: Positions in the training set to divide: all but those of the server.
        clients: Number of clients.
        rng: Source of all random draws.
    """

    spec: PartitionSpec
    data: Dataset
    pool: Indices
    clients: int
    rng: np.random.Generator

    def refuse(self, problem: str) -> VitrailError:
        """Return an error to raise, which begins with the setting."""
        return VitrailError(f"partition={self.spec}: {problem}")

    def labels(self) -> Indices:
        """Return the labels of the pool.

        Raises:
            VitrailError: If the data set has no labels.
        """
        labels = self.data.train.labels
        if labels is None:
            raise self.refuse(f"needs labels, but data={self.data.name} has none; use iid or bootstrap:SHARE")
        return labels[self.pool]

    def attributes(self) -> NDArray[np.bool_]:
        """Return the attributes of the pool, one column each.

        Raises:
            VitrailError: If the data set has no attributes.
        """
        attributes = self.data.train.attributes
        if attributes is None:
            raise self.refuse(
                f"needs attributes, but data={self.data.name} has none; use data=celeba or another partition"
            )
        return attributes[self.pool]

    def attribute(self) -> NDArray[np.bool_]:
        """Return the column of the attribute that the setting names."""
        columns, name = self.attributes(), self.spec.attribute
        if name not in self.data.attributes:
            raise self.refuse(f"there is no attribute {name}; {nearest(name, self.data.attributes)}")
        return columns[:, self.data.attributes.index(name)]
