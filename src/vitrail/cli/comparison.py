"""Run a comparison on the terminal and write its tables to files."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vitrail.cli.progress import ProgressDisplay
from vitrail.experiment.compare import Entry, EvalConfig, compare
from vitrail.report import write_report
from vitrail.report.comparison_tables import as_csv, by_clients, by_settings, markdown, standings
from vitrail.utils.atomic import write_atomically


def run_comparison(found: list[Entry], seeds: list[int], out: Path, how: EvalConfig) -> bool:
    """Run a comparison, print and write its tables, and return whether all runs succeeded."""
    console = Console(highlight=False)
    displays: list[ProgressDisplay] = []

    def watch(entry: Entry, seed: int) -> ProgressDisplay:
        console.print(f"\n[bold]{escape(entry.name)}[/bold], seed {seed}")
        displays.append(ProgressDisplay())
        return displays[-1]

    out.mkdir(parents=True, exist_ok=True)
    try:
        compare(found, seeds, out, how, watch, lambda text: console.print(text, style="red", markup=False))
    finally:
        for display in displays:
            display.stop()
    found = [e for e in found if e.wanted or e.runs]
    tables = [t for t in (standings(found, how), *by_settings(found), by_clients(found)) if t]
    write_atomically(out / "compare.md", "\n".join(map(markdown, tables)).encode())
    write_atomically(out / "compare.csv", as_csv(found).encode())
    runs = [folder for e in found for folder in e.runs]
    if runs:
        write_report(runs, out / "compare.html", out.name, tables)
    for table in tables:
        shown = Table(box=None, pad_edge=False, header_style="bold")
        for column in table.columns:
            shown.add_column(column, overflow="fold")
        for row in table.rows:
            shown.add_row(*map(escape, row))
        console.print()
        console.print(shown)
        console.print(f"\n{table.note}", markup=False)
    console.print(f"\ntables: {out}/compare.md, compare.csv, compare.html", markup=False)
    return not any(e.failed for e in found)
