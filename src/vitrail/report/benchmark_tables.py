"""Tables of a benchmark: published results and ours, for a terminal, Markdown, CSV and HTML."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from statistics import mean, stdev
from typing import Any

from vitrail.experiment.benchmark import PRESETS, PublishedResult, Result
from vitrail.metrics.downstream import num_set_aside
from vitrail.report.table import Table
from vitrail.utils.quantities import number, size, whole

COSTS: dict[str, Callable[[Result], float | None]] = {
    "up per client": lambda r: r.bytes_up,
    "model": lambda r: r.model_bytes,
    "CPU minutes": lambda r: r.cpu_seconds,
}


def benchmark_table(
    name: str, data: str, found: Sequence[Result], others: Sequence[PublishedResult], source: str, preset: str
) -> Table:
    """Return one row per method, with accuracy and FID for each ε.

    Args:
        name: What was measured, such as "moments".
        data: The data source.
        found: The results of all ε and seeds.
        others: Published results.
        source: Their source.
        preset: One of PRESETS.
    """
    data = data.partition(":")[0]
    epsilons = list(dict.fromkeys(r.epsilon for r in found))
    columns, rows = ["method"], [[f"{o.method}{'*' * o.public}"] for o in others]
    ours = [f"{name}{'*' * any(r.public for r in found)} (here)"]
    for e in epsilons:
        here = [r for r in found if r.epsilon == e]
        for measure in ("accuracy", "fid"):
            values = [100 * v if measure == "accuracy" else v for v in _values(here, measure)]
            published = [getattr(o, measure).get(data, {}).get(f"{e:g}" if e is not None else "") for o in others]
            if values or any(published):
                columns.append(f"{'accuracy %' if measure == 'accuracy' else 'FID'}, {here[0].title}")
                for row, value in zip(rows, published, strict=True):
                    row.append("" if value is None else f"{value:g}")
                ours.append(spread(values, 1))
    shown = [row for row in rows if any(row[1:])]
    for title, cost in COSTS.items():
        values = [v for r in found if r.epsilon == epsilons[0] and (v := cost(r)) is not None]
        if values:
            columns.append(title)
            for row in shown:
                row.append("")
            ours.append(whole(mean(values) / 60) if title == "CPU minutes" else size(round(mean(values))))
    return Table(f"Benchmark on {data}", columns, [*shown, ours], _note(found, source if shown else "", preset))


def detail_table(found: Sequence[Result]) -> Table:
    """Return all measures: one row per measure, one column per ε, mean ± standard deviation over seeds."""
    epsilons = list(dict.fromkeys(r.epsilon for r in found))
    names = list(dict.fromkeys(m.name for r in found for m in r.measures))
    rows = [[n, *(spread(_values([r for r in found if r.epsilon == e], n), 3) for e in epsilons)] for n in names]
    titles = dict.fromkeys(r.title for r in found)
    return Table("All measures", ["measure", *titles], rows)


def benchmark_csv(found: Sequence[Result]) -> str:
    """Return every measure of every model, one per line; columns without a value are left out."""
    out = io.StringIO()
    titles = ["run", "epsilon", "seed", "measure", "by", "value", "low", "high", "n_real", "n_fake", "note"]
    rows: list[list[Any]] = []
    for r in found:
        head = [r.name, "" if r.epsilon is None else r.epsilon, "" if r.given else r.seed]
        for m in r.measures:
            rows.append([*head, m.name, m.extractor, m.value, m.low, m.high, m.n_real, m.n_fake, m.note])
        for title, cost in COSTS.items():
            unit = "seconds" if title == "CPU minutes" else "bytes"
            if (value := cost(r)) is not None:
                rows.append([*head, title.replace("minutes", "time"), unit, value, "", "", "", "", ""])
    used = [i for i in range(len(titles)) if any(row[i] != "" for row in rows)]
    csv.writer(out, lineterminator="\n").writerows([row[i] for i in used] for row in (titles, *rows))
    return out.getvalue()


def spread(values: Sequence[float], digits: int) -> str:
    """Return a mean, with the standard deviation of several values.

    Examples:
        >>> spread([97.0, 98.0], 1), spread([97.25], 1), spread([], 1)
        ('97.5 ± 0.7', '97.2', '')
    """
    if not values:
        return ""
    return f"{mean(values):.{digits}f}" + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")


def _values(found: Sequence[Result], name: str) -> list[float]:
    return [m.value for r in found for m in r.measures if m.name == name]


def _note(found: Sequence[Result], source: str, preset: str) -> str:
    p, chosen = PRESETS[preset], [m for r in found for m in r.measures]
    tests = max(m.n_real for m in chosen if m.name == "accuracy")
    steps = ", ".join(f"{name} {n:,} steps" for name, n in p.steps.items())
    seeds = len({r.seed for r in found})
    made = max(m.n_fake for m in chosen if m.name == "accuracy")
    aside = num_set_aside(made)
    parts = [
        f"Accuracy on {tests:,} real test images of a classifier trained on {made - aside:,} of {made:,} generated "
        f"images ({steps}); the other {aside:,} chose it."
    ]
    if fid := [m for m in chosen if m.name == "fid"]:
        parts.append(f"FID against the training set, n = {number(fid[0].n_fake)} of each.")
    if seeds > 1:
        parts.append(f"± is the standard deviation over {seeds} seeds.")
    if len({r.epsilon for r in found}) > 1:
        parts.append("Costs are those of the first ε.")
    if public := ", ".join(sorted({r.public for r in found if r.public})):
        parts.append(f"* uses a network trained on public images (here: {public}).")
    if source:
        parts.append(f"Other rows: {source}.")
    return " ".join(parts)
