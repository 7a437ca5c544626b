"""Parsing of data and partition settings."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from vitrail.data import PARTITIONS, SOURCES, TRANSFORMS
from vitrail.data.specs import parse_partition, parse_source
from vitrail.utils.errors import VitrailError
from vitrail.utils.registry import Registry


def forms(registry: Registry[Any]) -> list[str]:
    """Return how to write the entries: a name, or the forms `name:...` of its summary."""
    found = []
    for name in registry:
        written = re.findall(rf"\b{name}:[^\s;]*[^\s;,.]", registry.summary(name))
        found += written or [name]
    return found


@pytest.mark.parametrize("form", forms(SOURCES))
def test_every_listed_source_can_be_parsed(form: str) -> None:
    assert str(parse_source(form)) == form


@pytest.mark.parametrize("form", forms(PARTITIONS))
def test_every_listed_partition_can_be_parsed_with_arguments(form: str) -> None:
    filled = form.replace("[:ATTRIBUTE]", ":Male").replace("SHARE", "0.5").replace("ALPHA", "0.3")
    filled = filled.replace(":NAME", ":Male").replace(":N", ":2").replace(":P", ":0.8")
    assert str(parse_partition(filled)) == filled


def test_the_listed_forms_are_all_that_there_are() -> None:
    assert len(forms(SOURCES)) == len(list(SOURCES)) + 2  # two of cifar10 and two of hf
    assert "domains:mnist8:SHARE" in forms(PARTITIONS)
    assert "classes:0-1,2-4,5-9" in forms(PARTITIONS)
    assert forms(TRANSFORMS) == list(TRANSFORMS)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("mnits", "did you mean mnist"),
        ("zzzz", "known are mnist5k"),
        ("", "no source"),
        ("folder", "folder:PATH"),
        ("npz:", "npz:PATH"),
        ("mnist:3", "takes no argument"),
        ("cifar10:6", "numbered 1 to 5"),
        ("cifar10:x", "numbered 1 to 5"),
        ("cifar10:3-1", "numbered 1 to 5"),
    ],
)
def test_an_invalid_source_is_refused_with_its_value_and_a_remedy(spec: str, reason: str) -> None:
    with pytest.raises(VitrailError, match=reason) as error:
        parse_source(spec)
    assert f"data={spec}" in str(error.value)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("dirchlet:0.3", "did you mean dirichlet"),
        ("iid:3", "takes no argument"),
        ("dirichlet", "needs an argument"),
        ("dirichlet:", "needs an argument"),
        ("dirichlet:0", "more than 0"),
        ("dirichlet:-1", "more than 0"),
        ("dirichlet:nan", "more than 0"),
        ("dirichlet:inf", "more than 0"),
        ("dirichlet:much", "must be a number"),
        ("dirichlet:0.3:", "attribute is missing"),
        ("bootstrap:0", "more than 0 and at most 1"),
        ("bootstrap:1.5", "at most 1"),
        ("skew:1.01", "at least 0 and at most 1"),
        ("shards:0", "at least 1"),
        ("shards:1.5", "not an integer"),
        ("classes:", "needs an argument"),
        ("classes:0-1,,2", "not an integer"),
        ("classes:5-2,0", "not a range"),
        ("classes:0-99999999999,1", "not a range"),
    ],
)
def test_an_invalid_partition_is_refused_with_its_value_and_a_remedy(spec: str, reason: str) -> None:
    with pytest.raises(VitrailError, match=reason) as error:
        parse_partition(spec)
    assert f"partition={spec}" in str(error.value)


def test_listing_and_parsing_import_no_heavy_library() -> None:
    code = (
        "import sys, vitrail.data as d; d.parse_source('mnist'); d.parse_partition('domains:mnist8');"
        "[r.summary(n) for r in (d.SOURCES, d.PARTITIONS, d.TRANSFORMS) for n in r];"
        "heavy = {'numpy', 'torch', 'PIL', 'rich', 'datasets', 'matplotlib', 'scipy'} & set(sys.modules);"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_package_exports_the_names_it_lists_and_no_others() -> None:
    import vitrail.data as package

    assert all(getattr(package, name) is not None for name in package.__all__)
    assert callable(package.load)
    with pytest.raises(AttributeError, match="nothing"):
        _ = package.nothing  # type: ignore[attr-defined]
