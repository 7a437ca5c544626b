"""Run a comparison or a benchmark on the terminal and write its tables to files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from vitrail.cli.progress import ProgressDisplay
from vitrail.experiment.benchmark import PRESETS, benchmark, benchmark_images, published
from vitrail.experiment.compare import Entry, EvalConfig, compare
from vitrail.report import Table as Shown
from vitrail.report import write_report
from vitrail.report.benchmark_tables import benchmark_csv, benchmark_table, detail_table
from vitrail.report.comparison_tables import as_csv, by_clients, by_settings, markdown, standings
from vitrail.utils.atomic import write_atomically
from vitrail.utils.console import Console
from vitrail.utils.errors import VitrailError


def run_comparison(found: list[Entry], seeds: list[int], out: Path, how: EvalConfig) -> bool:
    """Run a comparison, print and write its tables, and return whether all runs succeeded."""
    console = Console()
    displays: list[ProgressDisplay] = []

    def watch(entry: Entry, seed: int) -> ProgressDisplay:
        console.print(f"\n[bold]{escape(entry.name)}[/bold], seed {seed}")
        displays.append(ProgressDisplay(summary=False))
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
    print_tables(console, tables)
    console.print(f"\ntables: {out}/compare.md, compare.csv, compare.html", markup=False)
    return not any(e.failed for e in found)


def run_benchmark(
    method: str,
    data: str,
    epsilons: Sequence[float | None],
    seeds: Sequence[int],
    out: Path,
    preset: str,
    settings: Mapping[str, Any],
    images: str | None,
) -> None:
    """Run a benchmark, or measure given images; print the tables and write them as Markdown, CSV and HTML."""
    console = Console()
    displays: list[ProgressDisplay] = []

    def watch(name: str) -> ProgressDisplay:
        console.print(f"\n[bold]{escape(name)}[/bold]")
        displays.append(ProgressDisplay(summary=False))
        return displays[-1]

    def report_progress(text: str) -> None:
        console.print(text, style="dim", markup=False)

    if preset not in PRESETS:
        raise VitrailError(f"--preset {preset}: must be one of {', '.join(PRESETS)}")
    out.mkdir(parents=True, exist_ok=True)
    try:
        if images is not None:
            found = [benchmark_images(images, data, preset, report_progress, settings.get("size"))]
        else:
            found = benchmark(method, data, epsilons, seeds, out, preset, settings, watch, report_progress)
    finally:
        for display in displays:
            display.stop()
    name = images.partition(":")[2] if images is not None else method
    tables = [benchmark_table(name, data, found, *published(), preset), detail_table(found)]
    write_atomically(out / "benchmark.md", "\n".join(map(markdown, tables)).encode())
    write_atomically(out / "benchmark.csv", benchmark_csv(found).encode())
    runs = [out / r.name for r in found if not r.given]
    write_report(runs, out / "benchmark.html", f"Benchmark on {data}", tables)
    print_tables(console, tables)
    console.print(f"\ntables: {out}/benchmark.md, benchmark.csv, benchmark.html", markup=False)


def print_tables(console: Console, tables: Sequence[Shown]) -> None:
    """Print tables with their notes."""
    for table in tables:
        columns, *rows = narrow([table.columns, *table.rows], console.width)
        shown = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            shown.add_column(escape(column), overflow="fold")
        for row in rows:
            shown.add_row(*map(escape, row))
        console.print()
        console.print(shown)
        if table.note:
            console.print(f"\n{table.note}", markup=False)


def narrow(lines: Sequence[Sequence[str]], width: int) -> Sequence[Sequence[str]]:
    """Turn a table by 90 degrees if it is wider than the terminal, and narrower when it is turned.

    Examples:
        >>> narrow([["run", "up", "seconds"], ["prism", "9 kB", "1"]], 14)
        [('run', 'prism'), ('up', '9 kB'), ('seconds', '1')]
    """
    turned = list(zip(*lines, strict=True))
    wide, other = (sum(max(map(len, c)) + 2 for c in zip(*t, strict=True)) - 2 for t in (lines, turned))
    return turned if wide > width and other < wide else lines
