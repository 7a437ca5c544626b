"""Charts of one run, and of a comparison of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from vitrail.report.charts import Axis, Chart, Line, draw
from vitrail.report.facts import Facts, shared_metrics
from vitrail.report.rounds import FD, Round, best, series, thinned, traffic
from vitrail.report.table import Table
from vitrail.report.tables import MAX_ROWS
from vitrail.utils.quantities import number

_ROUND = Axis("round", "round", log=False)


def _metric_axis(metric: str, feature_network: str) -> Axis:
    if metric != FD:
        return Axis(metric)
    return Axis(f"Fréchet distance ({feature_network})" if feature_network else "Fréchet distance")


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
        charts.append(draw(title, lines, _ROUND, _metric_axis(metric, run.feature_network), f"{name}m{i}"))
    return charts


def traffic_charts(rounds: Sequence[Round]) -> list[Chart]:
    """Return charts of bytes and seconds per round, and of cumulative bytes, also as if sent in float32."""
    if not rounds:
        return []
    n = [r.number for r in rounds]
    sent = {"up": [r.bytes_up for r in rounds], "down": [r.bytes_down for r in rounds]}
    each = [Line(name, n, values, k) for k, (name, values) in enumerate(sent.items())]
    cumulative = [Line(line.name, n, list(accumulate(line.y)), line.color) for line in each]
    if traffic(rounds).floats is not None:
        for k, floats in enumerate(("floats_up", "floats_down")):
            total = accumulate(getattr(r, floats) for r in rounds)
            cumulative.append(Line(f"{each[k].name} as float32", n, list(total), k, dash=1))
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
    networks = {run.feature_network for run in runs}
    y = _metric_axis(metric, networks.pop() if len(networks) == 1 else "")
    over: dict[str, list[Line]] = {"rounds": [], "bytes": [], "time": []}
    for color, run in enumerate(runs):
        sent = accumulate(r.bytes_up + r.bytes_down for r in run.rounds)
        costs = zip(run.rounds, sent, accumulate(r.seconds for r in run.rounds), strict=True)
        measured = [((r.number, *spent), r.metrics[metric]) for r, *spent in costs if metric in r.metrics]
        for i, lines in enumerate(over.values()):
            lines.append(Line(run.label, [cost[i] for cost, _ in measured], [value for _, value in measured], color))
    axes = (_ROUND, Axis("bytes up and down, all clients", "bytes", log=True), Axis("seconds"))
    charts = [
        draw(f"{metric} over {x}", lines, axis, y, f"{name}{suffix}", legend=False)
        for (x, lines), axis, suffix in zip(over.items(), axes, "rbs", strict=True)
    ]
    return MetricComparison(metric, charts, _numbers(over["rounds"], metric))


def _numbers(lines: Sequence[Line], metric: str) -> Table:
    found = [dict(zip(line.x, line.y, strict=True)) for line in lines]
    rounds = sorted({n for values in found for n in values})
    shown = thinned(rounds, MAX_ROWS)
    rows = [[f"{n:.0f}", *(number(v[n]) if n in v else "" for v in found)] for n in shown]
    note = f"{len(shown)} of {len(rounds):,} rounds." if len(shown) < len(rounds) else ""
    return Table(f"{metric} by round", ["round", *(line.name for line in lines)], rows, note)


def run_legend(runs: Sequence[Facts]) -> list[Line]:
    """Return the colors of the runs, which are the same in all charts of a comparison."""
    return [Line(run.label, [], [], color) for color, run in enumerate(runs)]
