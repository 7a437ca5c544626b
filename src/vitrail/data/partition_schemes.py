"""The built-in partitions: each function returns, for every client, positions in the training set."""

from __future__ import annotations

import numpy as np

from vitrail.data.partition_request import Indices, PartitionRequest
from vitrail.data.partitions import numbered


def iid(request: PartitionRequest) -> list[Indices]:
    """Shuffle and divide evenly."""
    return np.array_split(request.rng.permutation(request.pool), request.clients)


def bootstrap(request: PartitionRequest) -> list[Indices]:
    """Draw a share for each client with replacement (Fan & Liu: half); clients overlap."""
    draws = max(1, round(request.spec.number * len(request.pool)))
    return [request.rng.choice(request.pool, draws) for _ in range(request.clients)]


def shards(request: PartitionRequest) -> list[Indices]:
    """Sort by label, cut into N shards per client and assign them at random (McMahan et al.; PRISM: N = 4)."""
    n = request.clients * request.spec.count
    if n > len(request.pool):
        most = len(request.pool) // request.clients
        raise request.refuse(f"{n:,} shards for {len(request.pool):,} images; use at most shards:{most}")
    by_label = np.lexsort((request.rng.random(len(request.pool)), request.labels()))
    cut = np.array_split(request.pool[by_label], n)  # sizes differ by at most one
    assigned = np.random.default_rng(_seed(request.rng)).permutation(n).reshape(request.clients, -1)
    return [np.concatenate([cut[i] for i in rows]) for rows in assigned]


def dirichlet(request: PartitionRequest) -> list[Indices]:
    """Divide each label in proportions drawn from Dirichlet(α); a small α leaves clients without images."""
    kind = request.attribute().astype(np.int64) if request.spec.attribute else request.labels()
    order = request.rng.permutation(len(request.pool))
    draw = np.random.default_rng(_seed(request.rng))
    alpha = np.full(request.clients, request.spec.number)
    by_label = []
    for label in np.unique(kind):
        images = request.pool[order[kind[order] == label]]
        ends = np.cumsum(draw.dirichlet(alpha)) * (2 * len(images))
        cuts = (ends.astype(int)[:-1] + 1) // 2  # to the nearest image: a client with a tiny proportion gets none
        by_label.append(np.split(images, cuts))
    return [np.concatenate(parts) for parts in zip(*by_label, strict=True)]


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


def classes(request: PartitionRequest) -> list[Indices]:
    """Assign N single-class shards of different classes to each client, or given class sets (PS-FedGAN)."""
    return _class_sets(request) if request.spec.sets else _class_shards(request)


def _class_shards(request: PartitionRequest) -> list[Indices]:
    labels, n = request.labels(), request.spec.count
    present = np.unique(labels)
    shards, kinds = request.clients * n, len(present)
    if n > kinds:
        raise request.refuse(f"each client cannot have {n} different classes of {kinds}; use at most classes:{kinds}")
    if shards < kinds:
        raise request.refuse(
            f"{shards} single-class shards leave {kinds - shards} of {kinds} classes without a client; "
            f"use classes:{-(-kinds // request.clients)} or clients={-(-kinds // n)}"
        )
    # Shards per class: as equal as possible; the classes with one more are drawn.
    left = np.full(kinds, shards // kinds)
    left[request.rng.permutation(kinds)[: shards % kinds]] += 1
    cut = [_split(request.rng.permutation(request.pool[labels == k]), m) for k, m in zip(present, left, strict=True)]
    parts: list[Indices] = []
    for _ in range(request.clients):
        # The classes with most shards left, ties drawn: so no client gets two shards of one class.
        chosen = np.lexsort((request.rng.random(kinds), -left))[:n]
        left[chosen] -= 1
        parts.append(np.concatenate([cut[k].pop() for k in chosen]))
    return parts


def _class_sets(request: PartitionRequest) -> list[Indices]:
    labels, sets = request.labels(), request.spec.sets
    if len(sets) != request.clients:
        raise request.refuse(
            f"has the classes of {len(sets)} clients, but there are {request.clients}; use clients={len(sets)}"
        )
    kinds = len(request.data.classes) or int(labels.max()) + 1
    unknown = sorted({k for s in sets for k in s} - set(range(kinds)))
    if unknown:
        raise request.refuse(f"there is no class {unknown[0]}; classes are 0 to {kinds - 1}")
    missing = sorted(set(np.unique(labels).tolist()) - {k for s in sets for k in s})
    if missing:
        raise request.refuse(f"leaves class {', '.join(map(str, missing))} without a client; add it to a class set")
    parts: list[list[Indices]] = [[] for _ in sets]
    for k in range(kinds):
        owners = [i for i, s in enumerate(sets) if k in s]
        of_class = request.rng.permutation(request.pool[labels == k])
        for i, part in zip(owners, _split(of_class, len(owners)), strict=True):
            parts[i].append(part)
    return [np.concatenate(p) for p in parts]


def skew(request: PartitionRequest) -> list[Indices]:
    """Assign a fraction p of each class to one random client and divide the rest evenly among the others."""
    labels, p = request.labels(), request.spec.number
    parts: list[list[Indices]] = [[] for _ in range(request.clients)]
    for k in np.unique(labels):
        of_class = request.rng.permutation(request.pool[labels == k])
        first, *others = request.rng.permutation(request.clients)
        cut = round(p * len(of_class)) if others else len(of_class)
        parts[first].append(of_class[:cut])
        for i, part in zip(others, _split(of_class[cut:], len(others)), strict=True):
            parts[i].append(part)
    return [np.concatenate(p) for p in parts]


def attribute(request: PartitionRequest) -> dict[str, Indices]:
    """Divide the images with the attribute among half of the clients, and the others among the other half."""
    has = request.attribute()
    if request.clients % 2:
        raise request.refuse(
            f"needs an even number of clients, got {request.clients}; use clients={request.clients + 1}"
        )
    shuffled = request.rng.permutation(len(request.pool))
    half = request.clients // 2
    parts: dict[str, Indices] = {}
    for prefix, value in ((request.spec.attribute, True), (f"not-{request.spec.attribute}", False)):
        images = request.pool[shuffled[has[shuffled] == value]]
        parts |= dict(zip(numbered(prefix, half), _split(images, half), strict=True))
    return parts


def attributes(request: PartitionRequest) -> list[Indices] | dict[str, Indices]:
    """Divide the attributes; a client has all images with one of its attributes, so clients overlap."""
    columns = request.attributes()
    known = columns.shape[1]
    if request.clients > known:
        raise request.refuse(f"{request.clients} clients for {known} attributes; use at most clients={known}")
    if request.clients == known:
        return {name: request.pool[columns[:, i]] for i, name in enumerate(request.data.attributes)}
    order = request.rng.permutation(known)
    return [request.pool[columns[:, some].any(axis=1)] for some in np.array_split(order, request.clients)]


def folders(request: PartitionRequest) -> dict[str, Indices]:
    """Assign each first-level sub-folder to one client."""
    groups = request.data.train.groups
    if groups is None:
        raise request.refuse(
            f"needs sub-folders, but data={request.data.name} has none; use data=folder:PATH with sub-folders"
        )
    if request.clients != len(request.data.groups):
        n = len(request.data.groups)
        raise request.refuse(
            f"{n} sub-folders in data={request.data.name}, but there are {request.clients} clients; use clients={n}"
        )
    return {name: request.pool[groups[request.pool] == g] for g, name in enumerate(request.data.groups)}


def domains(request: PartitionRequest) -> dict[str, Indices]:
    """Divide evenly, one client per transform; with a share below 1, each keeps only that share of the labels."""
    wanted, share = len(request.spec.domains), request.spec.number
    if request.clients != wanted:
        raise request.refuse(
            f"has {wanted} transforms for {request.clients} clients, one per client; use clients={wanted}"
        )
    parts = iid(request)
    if share == 1:
        return dict(zip(request.spec.domains, parts, strict=True))
    kinds, labels = np.unique(request.labels()), request.data.train.labels
    assert labels is not None  # noqa: S101
    n = max(1, round(share * len(kinds)))
    some = [part[np.isin(labels[part], request.rng.choice(kinds, n, replace=False))] for part in parts]
    return dict(zip(request.spec.domains, some, strict=True))


def _split(indices: Indices, parts: int) -> list[Indices]:
    """Split into parts as equal as possible; no parts give an empty list."""
    return np.array_split(indices, parts) if parts else []
