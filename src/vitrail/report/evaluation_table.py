"""Tables of measures for the console."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vitrail.metrics.results_io import Column
from vitrail.report.intervals import with_interval
from vitrail.utils.errors import printable

ARROWS = {"lower": "↓", "higher": "↑", "": ""}


def print_measures(columns: Sequence[Column], console: Console) -> None:
    """Print one row per measure and one column per model, with the notes below."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("measure", no_wrap=True)
    for title in (*(c.name.partition(" (")[0] for c in columns), "real/generated"):
        table.add_column(escape(printable(title)))
    notes: dict[str, list[str]] = {}
    network = ""
    for rows in zip(*(c.measures for c in columns), strict=True):
        m = rows[0]
        if m.extractor != network:
            network = m.extractor
            table.add_row(f"[dim]by {network}[/dim]")
        table.add_row(
            f"{escape(printable(m.name))} {ARROWS[m.better]}", *map(with_interval, rows), f"{m.n_real:,}/{m.n_fake:,}"
        )
        if m.note:
            notes.setdefault(m.note, []).append(m.name)
    console.print(table)
    console.print("\nIn brackets: 95% intervals over the choice of images. real/generated: number of images.")
    for note, names in notes.items():
        console.print(f"{printable(', '.join(dict.fromkeys(names)))}: {note}", markup=False)
    for c in columns:
        if " (" in c.name:
            console.print(printable(c.name), markup=False)
