"""The table of `vitrail evaluate --clients`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vitrail.experiment.evaluate_clients import FAMILIES, MEAN, MEAN_BOUNDS, by_client
from vitrail.metrics.results_io import Column
from vitrail.report.evaluation import with_interval
from vitrail.utils.errors import printable


def show_clients(columns: Sequence[Column], console: Console) -> None:
    """Print one line per client and one column per metric, with the mean below."""
    shown = [m for m in columns[0].measures if m.name in FAMILIES]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("client", *(f"{m.name} ↓ by {m.extractor}" for m in shown), "real/generated"):
        table.add_column(title)
    for c in columns:
        own = [m for m in c.measures if m.name in FAMILIES]
        table.add_row(escape(printable(c.name)), *map(with_interval, own), f"{own[0].n_real:,}/{own[0].n_fake:,}")
    table.add_row(MEAN, *(with_interval(m) for m in by_client(columns) if MEAN in m.name))
    console.print(table)
    console.print(f"\nIn brackets: 95% intervals over other images; of the mean, {MEAN_BOUNDS}.", markup=False)
    for note in dict.fromkeys(m.note for m in shown if m.note):
        console.print(note, markup=False)
