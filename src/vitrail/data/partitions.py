"""Partitions: which client has which images. NumPy is imported on first use, so that the registry loads fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitrail.utils.errors import VitrailError
from vitrail.utils.registry import Registry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vitrail.data.dataset import Dataset, Images
    from vitrail.data.partition_request import PartitionRequest

    Indices = NDArray[np.int64]
    Partitioner = Callable[[PartitionRequest], Sequence[Indices] | Mapping[str, Indices]]

OVERLAPPING = ("bootstrap", "attributes")  # an image may belong to several clients, or to none

_SUMMARIES = {
    "iid": "shuffled and divided evenly",
    "bootstrap": "bootstrap:SHARE, each client draws SHARE of the training set with replacement (overlapping)",
    "shards": "shards:N, sorted by label and cut into equal shards, N per client",
    "dirichlet": "dirichlet:ALPHA[:ATTRIBUTE], each label (or attribute value) is divided by a Dirichlet draw; "
    "a small ALPHA is uneven",
    "classes": "classes:N, single-class shards, N of different classes per client (PS-FedGAN's Split-1/2/3); "
    "classes:0-1,2-4,5-9, these class sets, one per client, 0+3-4 joins classes (PS-FedGAN's Setup-1)",
    "skew": "skew:P, a fraction P of each class to one random client, the rest to the others",
    "attribute": "attribute:NAME, half of the clients have the images with the attribute, the others those without",
    "attributes": "attributes are divided among clients; a client has all images with one of its attributes "
    "(overlapping)",
    "folders": "one client per first-level sub-folder",
    "domains": "domains:mnist8, divided evenly, and one transform per client is applied to its images (PaDPaF); "
    "also cifar, new3 or a list such as domains:invert,blur; domains:mnist8:SHARE, each client has SHARE of the labels",
}

PARTITIONS: Registry[Partitioner] = Registry(
    "partition",
    "vitrail.partitions",
    {name: (f"vitrail.data.partition_schemes:{name}", summary) for name, summary in _SUMMARIES.items()},
)
"""Partitions by name. A partition is a function that takes a `PartitionRequest` and returns, for each client, an array
of positions in the training set: a list, or a dictionary by the clients' names.

Register your own with the decorator `vitrail.register_partition` (`PARTITIONS.register`) or with an entry point in the
group `vitrail.partitions`. `partition=NAME` and `partition=NAME:ARGUMENTS` then select it; the text after the colon is
`request.spec.argument`.

Examples:
    >>> import numpy as np
    >>> from vitrail.data import PARTITIONS, PartitionRequest, load, partition
    >>> @PARTITIONS.register("sizes", "sizes:A,B,..., clients with these shares of the images")
    ... def sizes(request: PartitionRequest) -> list[np.ndarray]:
    ...     shares = np.array(request.spec.argument.split(","), float)
    ...     if len(shares) != request.clients:
    ...         raise request.refuse(f"needs {request.clients} shares, one per client")
    ...     cuts = np.cumsum(shares / shares.sum())[:-1] * len(request.pool)
    ...     return np.split(request.rng.permutation(request.pool), cuts.astype(int))
    >>> p = partition("sizes:1,1,2", load("digits"), 3, np.random.default_rng(0))
    >>> [len(i) for i in p.indices]
    [358, 359, 717]
"""


@dataclass(frozen=True)
class Partition:
    """The images of each client and of the server, as sorted positions in the training set.

    Args:
        spec: The `partition=` setting.
        names: Names of the clients.
        indices: Positions of each client's images; may be empty.
        server: Positions of the server's images.
    """

    spec: str
    names: tuple[str, ...]
    indices: tuple[Indices, ...]
    server: Indices

    def __len__(self) -> int:
        return len(self.indices)

    def client(self, data: Dataset, client: int) -> Images:
        """Return the images of one client."""
        return data.train.take(self.indices[client])

    def empty(self) -> tuple[str, ...]:
        """Return the names of the clients without images."""
        return tuple(name for name, own in zip(self.names, self.indices, strict=True) if not len(own))


def partition(
    spec: str, data: Dataset, clients: int, rng: np.random.Generator, server_fraction: float = 0.0
) -> Partition:
    """Divide the training set among clients, after the server has drawn its fraction.

    Args:
        spec: A partition such as `iid` or `dirichlet:0.3`; `vitrail list` shows all.
        data: The data set.
        clients: Number of clients.
        rng: Source of all random draws.
        server_fraction: Fraction of the training images that the server receives, drawn at random.

    Returns:
        The images of each client and of the server.

    Raises:
        VitrailError: If the setting is invalid or does not fit the data.

    Examples:
        >>> import numpy as np
        >>> from vitrail.data import load
        >>> p = partition("iid", load("digits"), 4, np.random.default_rng(0), server_fraction=0.1)
        >>> p.names, [len(i) for i in p.indices], len(p.server)
        (('client-0', 'client-1', 'client-2', 'client-3'), [323, 323, 323, 322], 143)
    """
    import numpy as np

    from vitrail.data.partition_request import PartitionRequest
    from vitrail.data.specs import parse_partition

    parsed = parse_partition(spec)
    if clients < 1:
        raise VitrailError(f"clients={clients}: must be at least 1")
    if not 0 <= server_fraction < 1:
        raise VitrailError(f"server_fraction={server_fraction}: must be at least 0 and less than 1, such as 0.1")
    shuffled = rng.permutation(len(data.train)).astype(np.int64)
    cut = round(server_fraction * len(shuffled))
    server, pool = np.sort(shuffled[:cut]), np.sort(shuffled[cut:])
    if not len(pool):
        raise VitrailError(f"partition={spec}: data={data.name} leaves no images for the clients; use more images")
    if clients > len(pool) and parsed.name not in OVERLAPPING:
        n = len(pool)
        raise VitrailError(f"partition={spec}: {clients:,} clients for {n:,} images; use at most clients={n}")
    request = PartitionRequest(parsed, data, pool, clients, rng)
    parts = PARTITIONS[parsed.name](request)
    if len(parts) != clients:
        raise request.refuse(f"returned images for {len(parts)} clients, expected {clients}")
    names, own = (tuple(parts), parts.values()) if isinstance(parts, Mapping) else (numbered("client", clients), parts)
    if not np.isin(np.concatenate([*own]), pool).all():
        raise request.refuse("returned positions that are not in request.pool, the images for clients")
    # Sorted: the images of a client are a set, and files on disk are read forwards.
    return Partition(spec, names, tuple(np.sort(p) for p in own), server)


def numbered(prefix: str, n: int) -> tuple[str, ...]:
    """Return n names with numbers of equal width.

    Examples:
        >>> numbered("client", 3)
        ('client-0', 'client-1', 'client-2')
    """
    width = len(str(n - 1))
    return tuple(f"{prefix}-{i:0{width}}" for i in range(n))
