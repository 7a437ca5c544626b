"""Run a comparison or a benchmark on the terminal and write its tables to files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.markup import escape

from vitrail.cli.progress import ProgressDisplay
from vitrail.experiment.benchmark import PRESETS, benchmark, benchmark_images, published
from vitrail.experiment.compare import Entry, EvalConfig, compare
from vitrail.report import Table, write_report
from vitrail.report.benchmark_tables import benchmark_csv, benchmark_table, detail_table
from vitrail.report.comparison_tables import as_csv, by_clients, by_settings, markdown, standings
from vitrail.utils.atomic import write_atomically
from vitrail.utils.console import Console, print_table
from vitrail.utils.errors import VitrailError


def run_comparison(found: list[Entry], seeds: list[int], out: Path, how: EvalConfig) -> bool:
    """Run a comparison, print and write its tables, and return whether all runs succeeded."""
    console = Console()
    out.mkdir(parents=True, exist_ok=True)
    with _progress(console) as start:
        compare(
            found, seeds, out, how, lambda entry, seed: start(entry.name, f", seed {seed}"),
            lambda text: console.print(text, style="red", markup=False),
        )  # fmt: skip
    found = [e for e in found if e.wanted or e.runs]
    tables = [t for t in (standings(found, how), *by_settings(found), by_clients(found)) if t]
    _publish(console, out / "compare", tables, as_csv(found), [folder for e in found for folder in e.runs], out.name)
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

    def report_progress(text: str) -> None:
        console.print(text, style="dim", markup=False)

    if preset not in PRESETS:
        raise VitrailError(f"--preset {preset}: must be one of {', '.join(PRESETS)}")
    out.mkdir(parents=True, exist_ok=True)
    with _progress(console) as start:
        if images is not None:
            found = [benchmark_images(images, data, preset, report_progress, settings.get("size"))]
        else:
            found = benchmark(method, data, epsilons, seeds, out, preset, settings, start, report_progress)
    name = images.partition(":")[2] if images is not None else method
    tables = [benchmark_table(name, data, found, *published(), preset), detail_table(found)]
    runs = [out / r.name for r in found if not r.given]
    _publish(console, out / "benchmark", tables, benchmark_csv(found), runs, f"Benchmark on {data}")


@contextmanager
def _progress(console: Console) -> Iterator[Callable[..., ProgressDisplay]]:
    """Yield a function that prints the title of a run and returns its display; at the end all displays are stopped."""
    displays: list[ProgressDisplay] = []

    def start(name: str, more: str = "") -> ProgressDisplay:
        console.print(f"\n[bold]{escape(name)}[/bold]{more}")
        displays.append(ProgressDisplay(summary=False))
        return displays[-1]

    try:
        yield start
    finally:
        for display in displays:
            display.stop()


def _publish(console: Console, path: Path, tables: Sequence[Table], csv: str, runs: Sequence[Path], title: str) -> None:
    """Print tables and write them as Markdown and CSV, and as HTML with the report of the runs."""
    write_atomically(path.with_suffix(".md"), "\n".join(map(markdown, tables)).encode())
    write_atomically(path.with_suffix(".csv"), csv.encode())
    write_report(runs, path.with_suffix(".html"), title, tables)
    print_tables(console, tables)
    console.print(f"\ntables: {path}.md, {path.name}.csv, {path.name}.html", markup=False)


def print_tables(console: Console, tables: Sequence[Table]) -> None:
    """Print tables with their notes."""
    for table in tables:
        columns, *rows = narrow([table.columns, *table.rows], console.width)
        console.print()
        print_table(console, rows, columns)
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
