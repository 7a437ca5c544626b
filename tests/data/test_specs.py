"""What a data or partition setting may say."""

from __future__ import annotations

import subprocess
import sys

import pytest

from vitrail.data.catalog import PARTITIONS, SOURCES
from vitrail.data.specs import parse_partition, parse_source
from vitrail.utils.errors import VitrailError


@pytest.mark.parametrize("form", SOURCES)
def test_every_listed_source_can_be_parsed(form: str) -> None:
    assert str(parse_source(form)) == form


@pytest.mark.parametrize("form", PARTITIONS)
def test_every_listed_partition_can_be_parsed_once_filled_in(form: str) -> None:
    filled = form.replace("[:ATTRIBUTE]", ":Male").replace("SHARE", "0.5").replace("ALPHA", "0.3")
    filled = filled.replace(":N", ":2").replace(":P", ":0.8").replace("AME", "Male")
    assert str(parse_partition(filled)) == filled


@pytest.mark.parametrize(
    ("spec", "said"),
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
def test_a_bad_source_is_refused_with_its_value_and_a_remedy(spec: str, said: str) -> None:
    with pytest.raises(VitrailError, match=said) as refusal:
        parse_source(spec)
    assert f"data={spec}" in str(refusal.value)


@pytest.mark.parametrize(
    ("spec", "said"),
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
        ("shards:1.5", "whole number"),
        ("classes:", "needs an argument"),
        ("classes:0-1,,2", "whole number"),
        ("classes:5-2,0", "not a range"),
        ("classes:0-99999999999,1", "not a range"),
    ],
)
def test_a_bad_partition_is_refused_with_its_value_and_a_remedy(spec: str, said: str) -> None:
    with pytest.raises(VitrailError, match=said) as refusal:
        parse_partition(spec)
    assert f"partition={spec}" in str(refusal.value)


def test_listing_and_parsing_load_no_heavy_library() -> None:
    code = (
        "import sys, vitrail.data, vitrail.data.catalog; vitrail.data.parse_source('mnist');"
        "heavy = {'numpy', 'torch', 'PIL', 'rich', 'datasets', 'matplotlib', 'scipy'} & set(sys.modules);"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_package_offers_what_it_lists_and_nothing_else() -> None:
    import vitrail.data as package

    assert all(getattr(package, name) is not None for name in package.__all__)
    assert callable(package.load)
    with pytest.raises(AttributeError, match="nothing"):
        _ = package.nothing  # type: ignore[attr-defined]
