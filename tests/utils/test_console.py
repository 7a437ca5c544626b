"""Text on the terminal and in log files."""

import re
from pathlib import Path

import pytest
from rich.table import Table

import vitrail
from vitrail.utils.console import Console, show_status

NAME = "folder:hospital:north"


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def test_names_with_colons_are_printed_as_they_are(capsys):
    console, table = Console(), Table(title=NAME)
    table.add_row(f"{NAME}: 5 images")
    console.print(NAME)
    console.print(NAME, markup=False)
    console.print(table)
    assert capsys.readouterr().out.count(NAME) == 4


def test_text_is_wrapped_on_terminals_only(capsys):
    Console().print("word " * 60)
    assert len(capsys.readouterr().out.splitlines()) == 1
    console = Console()
    console._force_terminal = True
    console.print("word " * 60)
    assert len(capsys.readouterr().out.splitlines()) > 1


def test_a_status_is_no_markup(capsys, monkeypatch):
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    with show_status() as report:
        report(f"[x] {NAME}")
        console_status = report.__closure__[0].cell_contents
        assert str(console_status.renderable.text) == f"[x] {NAME}"
    capsys.readouterr()


def test_all_output_uses_this_console():
    source = Path(vitrail.__file__).parent
    users = [
        p.name for p in source.rglob("*.py") if re.search(r"rich\.console|from rich import.*console", p.read_text())
    ]
    assert users == ["console.py"]
