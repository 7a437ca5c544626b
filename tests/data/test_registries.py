"""Sources, partitions and transforms that a user registers."""

from __future__ import annotations

import ast
import doctest
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from vitrail.data import PARTITIONS, SOURCES, TRANSFORMS, load, partition, partitions, sources, transforms
from vitrail.data.dataset import Dataset, Images
from vitrail.data.partition_request import PartitionRequest
from vitrail.data.read_request import ReadRequest
from vitrail.data.specs import parse_partition, parse_source
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """Remove what a test registered."""
    yield
    for registry in (SOURCES, PARTITIONS, TRANSFORMS):
        registry._added.clear()


@pytest.mark.parametrize("module", [sources, partitions, transforms])
def test_the_documented_example_of_registering_runs(module: object) -> None:
    path = Path(str(module.__file__))  # type: ignore[attr-defined]
    nodes = ast.parse(path.read_text()).body
    texts = [n.value.value for n in nodes if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    examples = [str(text) for text in texts if ">>> @" in str(text)]
    assert len(examples) == 1
    test = doctest.DocTestParser().get_doctest(examples[0], {}, path.name, str(path), 0)
    assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize("registry", [SOURCES, PARTITIONS, TRANSFORMS])
def test_every_built_in_entry_can_be_imported_and_has_a_summary(registry: object) -> None:
    for name in registry:  # type: ignore[attr-defined]
        assert callable(registry[name])  # type: ignore[index]
        assert registry.summary(name)  # type: ignore[attr-defined]


def test_a_registered_source_receives_its_argument_and_size() -> None:
    @SOURCES.register("grey")
    def grey(request: ReadRequest) -> Dataset:
        value = int(request.source.argument)
        return request.dataset(Images(np.full((4, 1, request.size, request.size), value, np.uint8)))

    data = load("grey:7", size=5, test_fraction=0)
    assert (data.name, data.shape, len(data.train)) == ("grey:7", (1, 5, 5), 4)
    assert (data.train.pixels == 7).all()
    with pytest.raises(VitrailError, match="did you mean grey"):
        parse_source("gray:7")


def test_a_source_that_returns_another_size_is_refused() -> None:
    SOURCES.add("small", lambda r: r.dataset(Images(np.zeros((4, 1, 5, 5), np.uint8))))
    with pytest.raises(VitrailError, match=r"data=small: .*\(4, 1, 5, 5\), expected \(n, channels, 32, 32\)"):
        load("small", test_fraction=0)


def test_a_registered_partition_receives_its_argument_and_names_clients() -> None:
    @PARTITIONS.register("halves")
    def halves(request: PartitionRequest) -> dict[str, np.ndarray]:
        left, right = request.spec.argument.split(":")
        return {left: request.pool[::2], right: request.pool[1::2]}

    p = partition("halves:a:b", load("digits", size=8), 2, np.random.default_rng(0), 0.1)
    assert p.names == ("a", "b")
    assert len(p.indices[0]) + len(p.indices[1]) + len(p.server) == 1442
    with pytest.raises(VitrailError, match="did you mean halves"):
        parse_partition("halfes:a:b")


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (lambda pool: [pool, pool[:0], pool[:0]], "images for 3 clients, expected 2"),
        (lambda pool: [pool, pool + 10**6], "not in request.pool"),
    ],
)
def test_a_partition_with_an_invalid_result_is_refused(parts, reason: str) -> None:
    PARTITIONS.add("broken", lambda request: parts(request.pool))
    with pytest.raises(VitrailError, match=f"partition=broken: .*{reason}"):
        partition("broken", load("digits", size=8), 2, np.random.default_rng(0))


def test_a_registered_transform_can_be_a_domain() -> None:
    @TRANSFORMS.register("black")
    def black(images: Tensor, rng: np.random.Generator) -> Tensor:
        return 0 * images

    data = load("digits", size=8)
    p = partition("domains:invert,black", data, 2, np.random.default_rng(0))
    seen = transforms.apply_client_transforms(data, p, Rng((0,)))
    assert seen.train.pixels[p.indices[1]].max() == 0
    assert np.array_equal(seen.train.pixels[p.indices[0]], 255 - data.train.pixels[p.indices[0]])
    with pytest.raises(VitrailError, match="did you mean black"):
        parse_partition("domains:blck")


@pytest.mark.parametrize("registry", [SOURCES, PARTITIONS, TRANSFORMS])
def test_a_built_in_name_cannot_be_registered_again(registry) -> None:
    with pytest.raises(VitrailError, match="already registered"):
        registry.register(next(iter(registry)))(lambda *_: None)
