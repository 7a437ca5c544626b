"""Who holds which pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrail.data import partition_schemes as schemes
from vitrail.data.dataset import Dataset, Images
from vitrail.data.partition_schemes import PartitionRequest
from vitrail.data.specs import PartitionSpec, parse_partition
from vitrail.utils.errors import VitrailError

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Partition:
    """The positions in the train set that each client, and the server, holds; a client may hold none."""

    spec: str
    names: tuple[str, ...]
    indices: tuple[Indices, ...]
    server: Indices

    def __len__(self) -> int:
        return len(self.indices)

    def client(self, data: Dataset, client: int) -> Images:
        """The pictures of one client."""
        return data.train.take(self.indices[client])

    def empty(self) -> tuple[str, ...]:
        """The names of the clients that hold nothing."""
        return tuple(name for name, held in zip(self.names, self.indices, strict=True) if not len(held))


_SCHEMES: dict[str, Callable[[PartitionRequest], list[Indices]]] = {
    "iid": schemes.iid,
    "bootstrap": schemes.bootstrap,
    "shards": schemes.shards,
    "dirichlet": schemes.dirichlet,
    "classes": schemes.classes,
    "skew": schemes.skew,
    "attribute": schemes.attribute,
    "attributes": schemes.attributes,
    "folders": schemes.folders,
    "domains": schemes.domains,
}

OVERLAPPING = ("bootstrap", "attributes")  # where a picture may belong to several clients, or to none


def partition(spec: str, data: Dataset, clients: int, rng: np.random.Generator, server_share: float = 0.0) -> Partition:
    """Divide the train set among clients, after the server has taken its share at random.

    >>> from vitrail.data import load
    >>> p = partition("iid", load("digits"), 4, np.random.default_rng(0), server_fraction=0.1)
    >>> p.names, [len(i) for i in p.indices], len(p.server)
    (('client-0', 'client-1', 'client-2', 'client-3'), [323, 323, 323, 322], 143)
    """
    parsed = parse_partition(spec)
    if clients < 1:
        raise VitrailError(f"clients={clients}: must be at least 1")
    if not 0 <= server_share < 1:
        raise VitrailError(f"server_fraction={server_share}: must be at least 0 and less than 1, such as 0.1")
    shuffled = rng.permutation(len(data.train)).astype(np.int64)
    cut = round(server_share * len(shuffled))
    server, pool = np.sort(shuffled[:cut]), np.sort(shuffled[cut:])
    if not len(pool):
        raise VitrailError(f"partition={spec}: data={data.name} leaves no pictures for the clients; use more pictures")
    if clients > len(pool) and parsed.name not in OVERLAPPING:
        n = len(pool)
        raise VitrailError(f"partition={spec}: {clients:,} clients for {n:,} pictures; use at most clients={n}")
    parts = _SCHEMES[parsed.name](PartitionRequest(parsed, data, pool, clients, rng))
    # In the order of the data set: what a client holds is a set, and files on disk are read forwards.
    return Partition(spec, _names(parsed, data, clients), tuple(np.sort(p) for p in parts), server)


def _names(spec: PartitionSpec, data: Dataset, clients: int) -> tuple[str, ...]:
    if spec.name == "folders":
        return data.groups
    if spec.name == "domains":
        return spec.domains
    if spec.name == "attributes" and clients == len(data.attributes):
        return data.attributes
    if spec.name == "attribute":
        half = _numbered("", clients // 2)
        return tuple(prefix + i for prefix in (spec.attribute, f"not-{spec.attribute}") for i in half)
    return _numbered("client", clients)


def _numbered(prefix: str, n: int) -> tuple[str, ...]:
    width = len(str(n - 1))
    return tuple(f"{prefix}-{i:0{width}}" for i in range(n))
