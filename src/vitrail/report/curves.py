"""Charts of one run, and of a comparison of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from vitrail.report.charts import Axis, Chart, Line, draw
from vitrail.report.facts import Facts, shared_metrics
from vitrail.report.rounds import FD, Round, best, series, thinned
from vitrail.report.table import Table
from vitrail.report.tables import MAX_ROWS
from vitrail.report.traffic import cumulative_bytes, cumulative_seconds, traffic
from vitrail.utils.quantities import number

_ROUND = Axis("round", "round", log=False)


def _metric_axis(metric: str, ruler: str) -> Axis:
    if metric != FD:
        return Axis(metric)
    return Axis(f"Fréchet distance ({ruler})" if ruler else "Fréchet distance")


def metric_charts(run: Facts, metrics: Sequence[str], name: str) -> list[Chart]:
    """Return charts of metrics over rounds; the best round of the distance is marked with a ring."""
    charts = []
    for i, metric in enumerate(metrics):
        measured = series(run.rounds, metric)
        lines = [Line(metric, [r.number for r, _ in measured], [v for _, v in measured])]
        lowest = best(run.rounds)
        if metric == FD and lowest and len(measured) > 1:
            lines.append(Line("best", [lowest[0].number], [lowest[1]], 1, ring=True))
        title = "fd (lower is better)" if metric == FD else metric
        charts.append(draw(title, lines, _ROUND, _metric_axis(metric, run.ruler), f"{name}m{i}"))
    return charts


def traffic_charts(rounds: Sequence[Round]) -> list[Chart]:
    """Return charts of bytes and seconds per round, and of cumulative bytes, also as if sent in float32."""
    if not rounds:
        return []
    n = [r.number for r in rounds]
    up, down = [r.bytes_up for r in rounds], [r.bytes_down for r in rounds]
    each = [Line("up", n, up, 0), Line("down", n, down, 1)]
    cumulative = [Line("up", n, list(accumulate(up)), 0), Line("down", n, list(accumulate(down)), 1)]
    if traffic(rounds).dense_up is not None:
        dense_up = [r.floats_up or 0 for r in rounds]
        dense_down = [r.floats_down or 0 for r in rounds]
        cumulative.append(Line("up as float32", n, list(accumulate(dense_up)), 0, dash=1))
        cumulative.append(Line("down as float32", n, list(accumulate(dense_down)), 1, dash=1))
    seconds = [Line("seconds", n, [r.seconds for r in rounds], 2)]
    return [
        draw("Bytes per round, all clients", each, _ROUND, Axis("bytes per round", "bytes", from_zero=True), "each"),
        draw("Cumulative bytes, all clients", cumulative, _ROUND, Axis("bytes", "bytes", from_zero=True), "cumulative"),
        draw("Time per round", seconds, _ROUND, Axis("seconds", from_zero=True), "time"),
    ]


@dataclass(frozen=True)
class MetricComparison:
    """One metric of several runs: charts over rounds, bytes and time, and a table."""

    metric: str
    charts: Sequence[Chart]
    table: Table


def metric_comparisons(runs: Sequence[Facts]) -> list[MetricComparison]:
    """Compare every metric that at least two runs have."""
    return [_compare(runs, metric, f"compare{i}") for i, metric in enumerate(shared_metrics(runs))]


def _compare(runs: Sequence[Facts], metric: str, name: str) -> MetricComparison:
    rulers = {run.ruler for run in runs}
    y = _metric_axis(metric, rulers.pop() if len(rulers) == 1 else "")
    by_round, by_bytes, by_time = [], [], []
    for color, run in enumerate(runs):
        cost = dict(zip((r.number for r in run.rounds), cumulative_bytes(run.rounds), strict=True))
        time = dict(zip((r.number for r in run.rounds), cumulative_seconds(run.rounds), strict=True))
        measured = [(r.number, value) for r, value in series(run.rounds, metric)]
        values = [value for _, value in measured]
        by_round.append(Line(run.label, [n for n, _ in measured], values, color))
        by_bytes.append(Line(run.label, [cost[n] for n, _ in measured], values, color))
        by_time.append(Line(run.label, [time[n] for n, _ in measured], values, color))
    bytes_axis = Axis("bytes up and down, all clients", "bytes", log=True)
    charts = [
        draw(f"{metric} over rounds", by_round, _ROUND, y, f"{name}r", legend=False),
        draw(f"{metric} over bytes", by_bytes, bytes_axis, y, f"{name}b", legend=False),
        draw(f"{metric} over time", by_time, Axis("seconds"), y, f"{name}s", legend=False),
    ]
    return MetricComparison(metric, charts, _numbers(by_round, metric))


def _numbers(lines: Sequence[Line], metric: str) -> Table:
    found = [dict(zip(line.x, line.y, strict=True)) for line in lines]
    rounds = sorted({n for values in found for n in values})
    shown = thinned(rounds, MAX_ROWS)
    return Table(
        title=f"{metric} by round",
        columns=["round", *(line.name for line in lines)],
        rows=[[f"{n:.0f}", *(number(v[n]) if n in v else "" for v in found)] for n in shown],
        note=f"{len(shown)} of {len(rounds):,} rounds." if len(shown) < len(rounds) else "",
    )


def run_legend(runs: Sequence[Facts]) -> list[Line]:
    """Return the colors of the runs, which are the same in all charts of a comparison."""
    return [Line(run.label, [], [], color) for color, run in enumerate(runs)]
