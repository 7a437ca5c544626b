"""Partitions of images among clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vitrail.data import Dataset, Images, Partition, partition, plot_partition
from vitrail.data.partition_plot import counts
from vitrail.utils.errors import VitrailError

ATTRIBUTES = tuple(f"a{i}" for i in range(8))


def made(n: int = 600, kinds: int = 10, labels: bool = True) -> Dataset:
    """Images in a random order of labels, with attributes and groups."""
    rng = np.random.default_rng(3)
    images = Images(
        np.zeros((n, 1, 1, 1), np.uint8),
        rng.permutation(np.arange(n) % kinds) if labels else None,
        rng.random((n, len(ATTRIBUTES))) < 0.3,
        np.arange(n) % 4,
    )
    names = tuple(map(str, range(kinds))) if labels else ()
    return Dataset("made", images, images.take(np.arange(0)), names, ATTRIBUTES, ("w", "x", "y", "z"))


DATA = made()
LABELS = DATA.train.labels
assert LABELS is not None


def divide(spec: str, clients: int, seed: int = 0, server: float = 0.0, data: Dataset = DATA) -> Partition:
    return partition(spec, data, clients, np.random.default_rng(seed), server)


def classes_of(p: Partition) -> list[list[int]]:
    return [np.flatnonzero(row).tolist() for row in counts(p, DATA)]


EXACT = [
    ("iid", 7),
    ("iid", 600),
    ("shards:4", 10),
    ("shards:1", 7),
    ("dirichlet:0.3", 10),
    ("dirichlet:0.005", 10),
    ("dirichlet:1000000", 3),
    ("dirichlet:0.3:a2", 5),
    ("classes:1", 10),
    ("classes:3", 7),
    ("classes:0-1,2-4,5-9", 3),
    ("classes:0-5,4-9,9", 3),
    ("skew:0.8", 4),
    ("skew:0", 2),
    ("skew:1", 3),
    ("skew:0.5", 1),
    ("attribute:a0", 10),
    ("folders", 4),
]
OVERLAPPING = [("bootstrap:0.5", 5), ("attributes", 4), ("attributes", 8)]


@pytest.mark.parametrize("server", [0.0, 0.13])
@pytest.mark.parametrize(("spec", "clients"), [e for e in EXACT if e[1] < 600])
def test_every_image_belongs_to_exactly_one_client_or_the_server(spec: str, clients: int, server: float) -> None:
    p = divide(spec, clients, server=server)
    positions = np.concatenate([p.server, *p.indices])
    assert np.array_equal(np.sort(positions), np.arange(len(DATA.train)))
    assert len(p.server) == round(server * len(DATA.train))
    assert len(p) == len(p.names) == len(set(p.names)) == clients


@pytest.mark.parametrize(("spec", "clients"), EXACT + OVERLAPPING)
def test_the_same_seed_gives_the_same_partition(spec: str, clients: int) -> None:
    one, two = (divide(spec, clients, seed=5) for _ in range(2))
    assert one.names == two.names
    assert all(np.array_equal(a, b) for a, b in zip(one.indices, two.indices, strict=True))
    assert all(i.dtype == np.int64 for i in (*one.indices, one.server))


@pytest.mark.parametrize("spec", ["iid", "shards:2", "dirichlet:0.3", "skew:0.8", "classes:2", "bootstrap:0.5"])
def test_another_seed_gives_another_partition(spec: str) -> None:
    one, two = divide(spec, 10, seed=1), divide(spec, 10, seed=2)
    assert not all(np.array_equal(a, b) for a, b in zip(one.indices, two.indices, strict=True))


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(5, 120),
    kinds=st.integers(1, 7),
    clients=st.integers(1, 9),
    server=st.floats(0, 0.5),
    form=st.sampled_from(["iid", "skew:0.7", "classes:1", "classes:2", "shards:2", "dirichlet:0.1"]),
)
def test_a_partition_covers_all_images_once_or_is_refused(
    n: int, kinds: int, clients: int, server: float, form: str
) -> None:
    data = made(n, kinds)
    try:
        p = divide(form, clients, n, server, data)
    except VitrailError as error:
        assert "use " in str(error)  # noqa: PT017, an error with a remedy is as valid as a partition
        return
    assert np.array_equal(np.sort(np.concatenate([p.server, *p.indices])), np.arange(n))


def test_sizes_of_iid_clients_differ_by_at_most_one() -> None:
    sizes = [len(i) for i in divide("iid", 7).indices]
    assert max(sizes) - min(sizes) <= 1


def test_names_are_padded_to_equal_width() -> None:
    assert divide("iid", 11).names[:2] == ("client-00", "client-01")
    assert divide("iid", 3).names == ("client-0", "client-1", "client-2")


def test_bootstrap_draws_the_share_with_replacement() -> None:
    p = divide("bootstrap:0.5", 20)
    assert {len(i) for i in p.indices} == {300}
    # In 300 draws from 600, each image is missed with probability (1 - 1/600)^300: 236 are expected.
    assert np.mean([len(np.unique(i)) for i in p.indices]) == pytest.approx(600 * (1 - (1 - 1 / 600) ** 300), abs=6)


def test_shards_have_few_classes_and_nearly_equal_sizes() -> None:
    data_counts = counts(divide("shards:2", 7), DATA)
    assert (data_counts > 0).sum(axis=1).max() <= 4  # two shards of 43 touch two classes of 60 each at most
    assert np.ptp(data_counts.sum(axis=1)) <= 2


def test_a_small_alpha_leaves_clients_empty_and_others_with_complete_classes() -> None:
    p = divide("dirichlet:0.0001", 50)
    assert len(p.empty()) >= 40
    assert min(len(i) for i in p.indices if len(i)) >= 60  # complete classes of 60, no remainders by rounding
    assert set(p.empty()) == {n for n, i in zip(p.names, p.indices, strict=True) if len(i) == 0}


def test_dirichlet_proportions_have_the_variance_of_the_distribution() -> None:
    alpha, clients = 0.5, 5
    shares = np.concatenate([counts(divide(f"dirichlet:{alpha}", clients, s), DATA).T / 60 for s in range(30)])
    expected = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert shares.mean() == pytest.approx(1 / clients)
    assert shares.var() == pytest.approx(expected, rel=0.1)


def test_dirichlet_over_an_attribute_divides_that_attribute() -> None:
    p = divide("dirichlet:0.0001:a1", 6)
    has = DATA.train.attributes
    assert has is not None
    for own in p.indices:  # with such a small alpha, each value of the attribute belongs to one client
        assert len(own) in (0, has[:, 1].sum(), (~has[:, 1]).sum(), 600)


@pytest.mark.parametrize(("n", "clients"), [(1, 10), (2, 10), (3, 10), (2, 5), (4, 9), (10, 3)])
def test_each_client_has_n_different_classes(n: int, clients: int) -> None:
    for seed in range(5):
        p = divide(f"classes:{n}", clients, seed)
        assert {len(c) for c in classes_of(p)} == {n}
        owners = (counts(p, DATA) > 0).sum(axis=0)
        assert np.ptp(owners) <= 1


def test_split_1_assigns_one_class_to_each_of_ten_clients() -> None:
    assert sorted(classes_of(divide("classes:1", 10))) == [[k] for k in range(10)]


def test_setup_1_assigns_the_listed_class_sets() -> None:
    assert classes_of(divide("classes:0-1,2-4,5-9", 3)) == [[0, 1], [2, 3, 4], [5, 6, 7, 8, 9]]


def test_a_class_that_two_clients_list_is_divided_between_them() -> None:
    table = counts(divide("classes:0-5,5-9", 2), DATA)
    assert table[:, 5].tolist() == [30, 30]
    assert table[:, 0].tolist() == [60, 0]


def test_skew_assigns_a_fraction_to_one_client_and_equal_parts_to_others() -> None:
    for row in counts(divide("skew:0.7", 4), DATA).T:
        assert sorted(row.tolist()) == [6, 6, 6, 42]


def test_an_attribute_divides_the_clients_in_halves() -> None:
    p = divide("attribute:a3", 6)
    has = DATA.train.attributes
    assert has is not None
    assert p.names == ("a3-0", "a3-1", "a3-2", "not-a3-0", "not-a3-1", "not-a3-2")
    assert all(has[i, 3].all() for i in p.indices[:3])
    assert not any(has[i, 3].any() for i in p.indices[3:])


def test_each_attribute_belongs_to_one_client_with_all_its_images() -> None:
    has = DATA.train.attributes
    assert has is not None
    p = divide("attributes", 4)
    owners = [[i for i, own in enumerate(p.indices) if np.isin(np.flatnonzero(has[:, a]), own).all()] for a in range(8)]
    assert all(owners)
    for own in p.indices:  # two attributes of 0.3 each: 1 - 0.7^2 of the images
        assert len(own) == pytest.approx(600 * 0.51, rel=0.15)
    named = divide("attributes", 8)
    assert named.names == ATTRIBUTES
    assert all(np.array_equal(i, np.flatnonzero(has[:, a])) for a, i in enumerate(named.indices))


def test_each_folder_is_a_client_of_the_same_name() -> None:
    p = divide("folders", 4)
    assert p.names == ("w", "x", "y", "z")
    assert p.indices[2].tolist() == list(range(2, 600, 4))


UNLABELLED = made(labels=False)
BARE = Dataset("bare", Images(np.zeros((5, 1, 1, 1), np.uint8)), Images(np.zeros((1, 1, 1, 1), np.uint8)))


@pytest.mark.parametrize(
    ("spec", "clients", "data", "reason"),
    [
        ("iid", 601, DATA, "601 clients for 600 images; use at most clients=600"),
        ("dirichlet:0.3", 601, DATA, "use at most clients=600"),
        ("skew:0.5", 601, DATA, "use at most clients=600"),
        ("classes:1", 601, DATA, "use at most clients=600"),
        ("shards:4", 200, DATA, "800 shards for 600 images; use at most shards:3"),
        ("shards:2", 3, UNLABELLED, "needs labels, but data=made has none"),
        ("dirichlet:1", 3, UNLABELLED, "needs labels"),
        ("classes:1", 10, UNLABELLED, "needs labels"),
        ("skew:1", 3, UNLABELLED, "needs labels"),
        ("classes:1", 3, DATA, "7 of 10 classes without a client; use classes:4 or clients=10"),
        ("classes:11", 3, DATA, "use at most classes:10"),
        ("classes:0-4,5-10", 2, DATA, "no class 10; classes are 0 to 9"),
        ("classes:0-4,5-9", 3, DATA, "use clients=2"),
        ("classes:0-4,6-9", 2, DATA, "class 5 without a client"),
        ("attribute:b3", 4, DATA, "known are a0, a1"),
        ("attribute:a3", 5, DATA, "even number of clients, got 5; use clients=6"),
        ("attribute:a3", 4, BARE, "needs attributes"),
        ("dirichlet:1:zebra", 4, DATA, "no attribute zebra; known are a0"),
        ("attributes", 9, DATA, "use at most clients=8"),
        ("folders", 5, DATA, "use clients=4"),
        ("folders", 4, BARE, "needs sub-folders"),
        ("round-robin", 4, DATA, "no partition round-robin"),
    ],
)
def test_an_impossible_partition_is_refused_with_a_remedy(spec: str, clients: int, data: Dataset, reason: str) -> None:
    with pytest.raises(VitrailError, match=reason) as error:
        divide(spec, clients, data=data)
    assert f"partition={spec}" in str(error.value)


@pytest.mark.parametrize("share", [-0.1, 1.0, 2.0, float("nan")])
def test_an_invalid_server_fraction_is_refused(share: float) -> None:
    with pytest.raises(VitrailError, match="server_fraction="):
        divide("iid", 3, server=share)


def test_zero_clients_or_zero_images_are_refused() -> None:
    with pytest.raises(VitrailError, match="clients=0"):
        divide("iid", 0)
    with pytest.raises(VitrailError, match="no images for the clients"):
        divide("iid", 1, server=0.99, data=BARE)


@pytest.mark.parametrize(
    ("spec", "clients", "data"),
    [
        ("classes:0-1,2-4,5-9", 3, DATA),
        ("dirichlet:0.01", 100, DATA),
        ("iid", 4, UNLABELLED),
        ("iid", 200, DATA),
    ],
)
def test_the_plot_of_a_partition_has_one_row_per_client(tmp_path: Path, spec: str, clients: int, data: Dataset) -> None:
    plot_partition(divide(spec, clients, data=data, server=0.1), data, tmp_path / "p.png")
    with Image.open(tmp_path / "p.png") as image:
        assert image.format == "PNG"
        assert image.height > 2 * clients
        assert np.asarray(image.convert("L")).std() > 5  # not empty


def test_the_plotted_counts_equal_those_of_a_plain_loop() -> None:
    p = divide("dirichlet:0.3", 5)
    table = counts(p, DATA)
    for client, own in enumerate(p.indices):
        for k in range(10):
            assert table[client, k] == sum(int(LABELS[i]) == k for i in own)
    assert counts(divide("iid", 4, data=UNLABELLED), UNLABELLED).tolist() == [[150]] * 4
