"""The ways of dividing pictures among clients.

Each takes a task and gives one array of positions in the train set for each client.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.dataset import Dataset
from vitrail.data.specs import PartitionSpec
from vitrail.utils.errors import VitrailError, nearest

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class PartitionRequest:
    """What is to be divided, into how many parts, and by which chance."""

    spec: PartitionSpec
    data: Dataset
    pool: Indices  # the positions that are left for clients
    clients: int
    rng: np.random.Generator

    def refuse(self, problem: str) -> VitrailError:
        """The error that names the setting first."""
        return VitrailError(f"partition={self.spec}: {problem}")

    def labels(self) -> Indices:
        """The labels of the pool."""
        labels = self.data.train.labels
        if labels is None:
            raise self.refuse(f"needs labels, and data={self.data.name} has none; use iid or bootstrap:SHARE")
        return labels[self.pool]

    def attributes(self) -> NDArray[np.bool_]:
        """The attributes of the pool, one column each."""
        attributes = self.data.train.attributes
        if attributes is None:
            raise self.refuse(
                f"needs attributes, and data={self.data.name} has none; use data=celeba or another partition"
            )
        return attributes[self.pool]

    def attribute(self) -> NDArray[np.bool_]:
        """The one attribute that the setting names."""
        columns, name = self.attributes(), self.spec.attribute
        if name not in self.data.attributes:
            raise self.refuse(f"there is no attribute {name}; {nearest(name, self.data.attributes)}")
        return columns[:, self.data.attributes.index(name)]


def iid(task: PartitionRequest) -> list[Indices]:
    """Shuffled and dealt evenly."""
    return np.array_split(task.rng.permutation(task.pool), task.clients)


def bootstrap(task: PartitionRequest) -> list[Indices]:
    """Each client draws a share with replacement (Fan & Liu: half), so that clients overlap."""
    draws = max(1, round(task.spec.number * len(task.pool)))
    return [task.rng.choice(task.pool, draws) for _ in range(task.clients)]


def shards(task: PartitionRequest) -> list[Indices]:
    """Sorted by label, cut into N shards per client, dealt at random (McMahan et al.; PRISM takes 4)."""
    from flwr_datasets.partitioner import ShardPartitioner

    n = task.clients * task.spec.count
    if n > len(task.pool):
        most = len(task.pool) // task.clients
        raise task.refuse(f"{n:,} shards for {len(task.pool):,} pictures; use at most shards:{most}")
    by_label = np.lexsort((task.rng.random(len(task.pool)), task.labels()))
    cut = np.array_split(task.pool[by_label], n)
    # flwr-datasets leaves out the pictures that do not fill a last shard. We cut the shards, which then
    # differ by one picture at most, and have it deal rows that stand for them.
    dealer = ShardPartitioner(
        task.clients, "shard", num_shards_per_partition=task.spec.count, shard_size=1, seed=_seed(task.rng)
    )
    return [np.concatenate([cut[i] for i in rows]) for rows in _deal(dealer, task.clients, "shard", np.arange(n))]


def dirichlet(task: PartitionRequest) -> list[Indices]:
    """Each label is divided in proportions drawn from Dirichlet(α); small α leaves clients empty."""
    from flwr_datasets.partitioner import DirichletPartitioner

    kind = task.attribute().astype(np.int64) if task.spec.attribute else task.labels()
    # flwr-datasets gives a client consecutive pictures of a label; shuffled first, they are a random set. And
    # it rounds the cuts between clients down, which with a small α leaves strays of every label to the last
    # client. So each picture is two rows and belongs to whoever gets the first: that rounds to the nearest.
    order = task.rng.permutation(len(task.pool))
    # No minimum size: with a small α it is never reached, and flwr-datasets gives up after ten draws.
    divider = DirichletPartitioner(
        task.clients,
        "kind",
        alpha=task.spec.number,
        min_partition_size=0,
        shuffle=False,
        seed=_seed(task.rng),
    )
    dealt = _deal(divider, task.clients, "kind", np.repeat(kind[order], 2))
    return [task.pool[order[rows[rows % 2 == 0] // 2]] for rows in dealt]


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


def _deal(partitioner: Any, clients: int, column: str, values: Indices) -> list[Indices]:
    """The row numbers that a partitioner of flwr-datasets gives to each client."""
    import datasets

    rows = np.arange(len(values))
    partitioner.dataset = datasets.Dataset.from_dict({column: values, "row": rows})
    with warnings.catch_warnings():
        # Something between datasets and pyarrow.
        warnings.filterwarnings("ignore", category=FutureWarning, module="pyarrow")
        return [np.asarray(partitioner.load_partition(i)[:]["row"], np.int64) for i in range(clients)]


def classes(task: PartitionRequest) -> list[Indices]:
    """Single-class shards, N of different classes for each client; or given class sets (PS-FedGAN)."""
    return _class_sets(task) if task.spec.sets else _class_shards(task)


def _class_shards(task: PartitionRequest) -> list[Indices]:
    labels, n = task.labels(), task.spec.count
    present = np.unique(labels)
    shards, kinds = task.clients * n, len(present)
    if n > kinds:
        raise task.refuse(f"each client cannot hold {n} different classes of {kinds}; use at most classes:{kinds}")
    if shards < kinds:
        raise task.refuse(
            f"{shards} single-class shards leave {kinds - shards} of {kinds} classes to nobody; "
            f"use classes:{-(-kinds // task.clients)} or clients={-(-kinds // n)}"
        )
    # Shards per class: as equal as can be; which classes get one more is drawn.
    left = np.full(kinds, shards // kinds)
    left[task.rng.permutation(kinds)[: shards % kinds]] += 1
    cut = [_split(task.rng.permutation(task.pool[labels == k]), m) for k, m in zip(present, left, strict=True)]
    held: list[Indices] = []
    for _ in range(task.clients):
        # The classes with most shards left, ties drawn: so nobody is ever left two shards of one class.
        mine = np.lexsort((task.rng.random(kinds), -left))[:n]
        left[mine] -= 1
        held.append(np.concatenate([cut[k].pop() for k in mine]))
    return held


def _class_sets(task: PartitionRequest) -> list[Indices]:
    labels, sets = task.labels(), task.spec.sets
    if len(sets) != task.clients:
        raise task.refuse(
            f"names the classes of {len(sets)} clients, and there are {task.clients}; use clients={len(sets)}"
        )
    kinds = len(task.data.classes) or int(labels.max()) + 1
    unknown = sorted({k for s in sets for k in s} - set(range(kinds)))
    if unknown:
        raise task.refuse(f"there is no class {unknown[0]}; classes are 0 to {kinds - 1}")
    nobody = sorted(set(np.unique(labels).tolist()) - {k for s in sets for k in s})
    if nobody:
        raise task.refuse(f"leaves class {', '.join(map(str, nobody))} to nobody; give it to a client")
    held: list[list[Indices]] = [[] for _ in sets]
    for k in range(kinds):
        holders = [i for i, s in enumerate(sets) if k in s]
        of_class = task.rng.permutation(task.pool[labels == k])
        for i, part in zip(holders, _split(of_class, len(holders)), strict=True):
            held[i].append(part)
    return [np.concatenate(parts) for parts in held]


def skew(task: PartitionRequest) -> list[Indices]:
    """Each class gives a fraction p to one random client and spreads the rest evenly over the others."""
    labels, p = task.labels(), task.spec.number
    held: list[list[Indices]] = [[] for _ in range(task.clients)]
    for k in np.unique(labels):
        of_class = task.rng.permutation(task.pool[labels == k])
        favourite, *others = task.rng.permutation(task.clients)
        cut = round(p * len(of_class)) if others else len(of_class)
        held[favourite].append(of_class[:cut])
        for i, part in zip(others, _split(of_class[cut:], len(others)), strict=True):
            held[i].append(part)
    return [np.concatenate(parts) for parts in held]


def attribute(task: PartitionRequest) -> list[Indices]:
    """Half of the clients share the pictures with the attribute, the other half those without."""
    has = task.attribute()
    if task.clients % 2:
        raise task.refuse(f"needs an even number of clients, got {task.clients}; use clients={task.clients + 1}")
    shuffled = task.rng.permutation(len(task.pool))
    half = task.clients // 2
    return [part for side in (True, False) for part in _split(task.pool[shuffled[has[shuffled] == side]], half)]


def attributes(task: PartitionRequest) -> list[Indices]:
    """All attributes are dealt; a client holds every picture with one of its own, so that clients overlap."""
    columns = task.attributes()
    known = columns.shape[1]
    if task.clients > known:
        raise task.refuse(f"{task.clients} clients for {known} attributes; use at most clients={known}")
    # One attribute each: clients bear the attributes' names, so the order stays.
    order = np.arange(known) if task.clients == known else task.rng.permutation(known)
    return [task.pool[columns[:, mine].any(axis=1)] for mine in np.array_split(order, task.clients)]


def folders(task: PartitionRequest) -> list[Indices]:
    """Each first-level sub-folder is a client."""
    groups = task.data.train.groups
    if groups is None:
        raise task.refuse(f"needs sub-folders, and data={task.data.name} has none; use data=folder:PATH with some")
    if task.clients != len(task.data.groups):
        n = len(task.data.groups)
        raise task.refuse(
            f"{n} sub-folders in data={task.data.name}, and there are {task.clients} clients; use clients={n}"
        )
    return [task.pool[groups[task.pool] == g] for g in range(task.clients)]


def domains(task: PartitionRequest) -> list[Indices]:
    """Shuffled and dealt evenly, a client for each transform; of its share each keeps some labels, drawn for it."""
    wanted, share = len(task.spec.domains), task.spec.number
    if task.clients != wanted:
        raise task.refuse(f"names {wanted} transforms, one for each of {task.clients} clients; use clients={wanted}")
    parts = iid(task)
    if share == 1:
        return parts
    kinds, labels = np.unique(task.labels()), task.data.train.labels
    assert labels is not None  # noqa: S101
    n = max(1, round(share * len(kinds)))
    return [part[np.isin(labels[part], task.rng.choice(kinds, n, replace=False))] for part in parts]


def _split(indices: Indices, parts: int) -> list[Indices]:
    """As equal parts as can be; none of none."""
    return np.array_split(indices, parts) if parts else []
