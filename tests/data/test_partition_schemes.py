"""Shards and Dirichlet partitions, compared with the partitioners of flwr-datasets."""

import datasets
import numpy as np
import pytest
from flwr_datasets.partitioner import DirichletPartitioner, ShardPartitioner

from vitrail.data import load, partition


@pytest.fixture(scope="module")
def digits():
    return load("digits", size=8)


def assigned(partitioner, clients, column, values):
    """Return the row numbers that a partitioner of flwr-datasets assigns to each client."""
    partitioner.dataset = datasets.Dataset.from_dict({column: values, "row": np.arange(len(values))})
    return [np.asarray(partitioner.load_partition(i)[:]["row"], np.int64) for i in range(clients)]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("clients", "count"), [(3, 2), (10, 4)])
def test_shards_are_assigned_as_by_flwr_datasets(digits, clients, count):
    found = partition(f"shards:{count}", digits, clients, np.random.default_rng(7))
    draw, n = np.random.default_rng(7), clients * count
    draw.permutation(len(digits.train))  # the server's fraction
    cut = np.array_split(np.lexsort((draw.random(len(digits.train)), digits.train.labels)), n)
    dealer = ShardPartitioner(
        clients, "shard", num_shards_per_partition=count, shard_size=1, seed=int(draw.integers(2**31))
    )
    rows = assigned(dealer, clients, "shard", np.arange(n))
    for ours, shards in zip(found.indices, rows, strict=True):
        assert np.array_equal(ours, np.sort(np.concatenate([cut[i] for i in shards])))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("clients", "alpha"), [(3, 5.0), (10, 0.3), (17, 0.005)])
def test_dirichlet_proportions_are_those_of_flwr_datasets(digits, clients, alpha):
    found = partition(f"dirichlet:{alpha}", digits, clients, np.random.default_rng(7))
    draw = np.random.default_rng(7)
    draw.permutation(len(digits.train))  # the server's fraction
    order = draw.permutation(len(digits.train))
    divider = DirichletPartitioner(
        clients, "kind", alpha=alpha, min_partition_size=0, shuffle=False, seed=int(draw.integers(2**31))
    )
    # flwr-datasets rounds cuts down; two rows per image, of which the first counts, round to the nearest.
    rows = assigned(divider, clients, "kind", np.repeat(digits.train.labels[order], 2))
    for ours, theirs in zip(found.indices, rows, strict=True):
        assert np.array_equal(ours, np.sort(order[theirs[theirs % 2 == 0] // 2]))
