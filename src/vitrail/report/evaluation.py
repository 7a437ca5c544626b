"""Results of `vitrail evaluate`: read from evaluation.json, as tables of a report, and printed on the console."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter
from rich.markup import escape
from rich.table import Table as RichTable

from vitrail.auditing.attack import Figure
from vitrail.experiment.evaluate import FAMILIES, MEAN, MEAN_BOUNDS, by_client
from vitrail.metrics.measure import Measure
from vitrail.metrics.results_io import Column
from vitrail.report.table import Table
from vitrail.utils.console import Console, print_table
from vitrail.utils.errors import printable
from vitrail.utils.quantities import number

T = TypeVar("T")


@dataclass(frozen=True)
class Evaluation:
    """Measures of each model of a run, against the same real images."""

    against: str  # description of the real images
    models: dict[str, list[Measure]]


def read_evaluation(path: Path) -> tuple[Evaluation | None, str]:
    """Read an evaluation; arguments and result as for `read_results`."""
    return read_results(path, _evaluation, "vitrail evaluate")


def _evaluation(tree: Any) -> Evaluation:
    read = TypeAdapter(list[Measure]).validate_python
    models = {str(c["name"]): read([_complete(m) for m in c["measures"]]) for c in tree["columns"]}
    return Evaluation(" of ".join(filter(None, [str(tree.get("real", "")), str(tree.get("data", ""))])), models)


def read_results(path: Path, parse: Callable[[Any], T], command: str) -> tuple[T | None, str]:
    """Read results from a JSON file.

    Args:
        path: The file.
        parse: Converts the file's content.
        command: The command that writes the file.

    Returns:
        The results, or None if there are none; and a description of the problem if they cannot be read.
    """
    try:
        return parse(json.loads(path.read_text("utf-8"))), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        return None, f"{path.name} could not be read ({type(e).__name__}: {e}); run `{command}` again."


def _complete(measure: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a measure, with defaults for missing ones."""
    missing = {"low": nan, "high": nan, "n_real": 0, "n_fake": 0, "better": ""}
    return missing | {name: value for name, value in measure.items() if value is not None}


def key(m: Measure) -> str:
    """Return the column title of a measure: values with different titles cannot be compared."""
    details = ", ".join(filter(None, [m.extractor, f"{m.better} is better" if m.better else ""]))
    return m.name + (f" ({details})" if details else "")


def evaluation_tables(evaluation: Evaluation) -> list[Table]:
    """Return one table per model, with one row per measure and notes below."""
    columns = ["measure", "value", "95% interval", "better", "measured with", "generated", "real"]
    tables = []
    for model, measures in evaluation.models.items():
        notes = " ".join(f"{names}: {note.rstrip('.')}." for note, names in names_by_note(measures).items())
        tables.append(Table(model[:1].upper() + model[1:], columns, [_row(m) for m in measures], notes))
    return tables


def _row(m: Measure) -> list[str]:
    counts = [f"{n:,}" if n else "" for n in (m.n_fake, m.n_real)]
    return [m.name, number(m.value), interval(m), m.better, m.extractor, *counts]


ARROWS = {"lower": "↓", "higher": "↑", "": ""}


def interval(m: Measure | Figure) -> str:
    """Return the bounds of a value, or an empty text if it has none."""
    return f"{number(m.low)} to {number(m.high)}" if isfinite(m.low) and isfinite(m.high) else ""


def with_interval(m: Measure | Figure) -> str:
    """Return a value with its bounds in brackets.

    Examples:
        >>> with_interval(Measure("fd", 12.34, 11.0, 13.6, 1000, 5000, "lower", "vitrail-cifar"))
        '12.3 (11 to 13.6)'
    """
    return number(m.value) + (f" ({interval(m)})" if interval(m) else "")


def names_by_note(measures: Sequence[Measure]) -> dict[str, str]:
    """Return the notes of measures, each with the names of its measures."""
    notes = dict.fromkeys(m.note for m in measures if m.note)
    return {note: ", ".join(dict.fromkeys(m.name for m in measures if m.note == note)) for note in notes}


def print_measures(columns: Sequence[Column], console: Console) -> None:
    """Print one row per measure and one column per model, with the notes below."""
    table = RichTable(box=None, pad_edge=False, header_style="bold")
    table.add_column("measure", no_wrap=True)
    for title in (*(c.name.partition(" (")[0] for c in columns), "real/generated"):
        table.add_column(escape(printable(title)))
    network = ""
    for rows in zip(*(c.measures for c in columns), strict=True):
        m = rows[0]
        if m.extractor != network:
            network = m.extractor
            table.add_row(f"[dim]by {escape(printable(network))}[/dim]" if network else "")
        table.add_row(
            f"{escape(printable(m.name))} {ARROWS[m.better]}", *map(with_interval, rows), f"{m.n_real:,}/{m.n_fake:,}"
        )
    console.print(table)
    console.print("\nIn brackets: 95% intervals over the choice of images. real/generated: number of images.")
    for note, names in names_by_note(columns[0].measures).items():
        console.print(f"{printable(names)}: {note}", markup=False)
    for c in columns:
        if " (" in c.name:
            console.print(printable(c.name), markup=False)


def show_clients(columns: Sequence[Column], console: Console) -> None:
    """Print one line per client and one column per metric, with the mean below."""
    shown = [m for m in columns[0].measures if m.name in FAMILIES]
    rows = []
    for c in columns:
        own = [m for m in c.measures if m.name in FAMILIES]
        rows.append([c.name, *map(with_interval, own), f"{own[0].n_real:,}/{own[0].n_fake:,}"])
    rows.append([MEAN, *(with_interval(m) for m in by_client(columns) if MEAN in m.name)])
    print_table(console, rows, ["client", *(f"{m.name} ↓ by {m.extractor}" for m in shown), "real/generated"])
    console.print(f"\nIn brackets: 95% intervals over other images; of the mean, {MEAN_BOUNDS}.", markup=False)
    for note in dict.fromkeys(m.note for m in shown if m.note):
        console.print(note, markup=False)
