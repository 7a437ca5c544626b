"""The table of papers: its files and functions exist."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [line.split(" | ") for line in (ROOT / "docs/index.md").read_text("utf-8").splitlines() if "`src/" in line]


def test_every_method_is_in_the_table():
    from vitrail.methods.registry import METHODS

    named = {name for *_, functions in ROWS for name in re.findall(r"`(\w+)[.`]", functions)}
    assert {METHODS[name].__name__ for name in METHODS if METHODS.is_builtin(name)} <= named


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("| "))
def test_the_functions_of_a_paper_are_in_its_files(row):
    _, algorithm, files, functions = row
    assert algorithm
    paths = re.findall(r"`([^`]+)`", files)
    assert all((ROOT / path).is_file() for path in paths)
    modules = [import_module(path[4:-3].replace("/", ".")) for path in paths]
    names, owner = re.findall(r"`([\w.]+)`", functions), ""
    assert names
    for name in names:
        owner, _, function = name.rpartition(".") if not name.startswith(".") else (owner, "", name[1:])
        found = [vars(getattr(m, owner)) if owner else vars(m) for m in modules if not owner or hasattr(m, owner)]
        assert any(function in attributes for attributes in found), name
