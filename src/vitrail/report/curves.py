"""Which charts a run and a comparison have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from vitrail.report.charts import Axis, Chart, Line, draw
from vitrail.report.facts import Facts, shared_metrics
from vitrail.report.rounds import FD, Round, best, series, thinned
from vitrail.report.tables import LONGEST, Table
from vitrail.report.traffic import sent_so_far, time_so_far, traffic
from vitrail.utils.quantities import number

_ROUND = Axis("round", "round", log=False)


def _about(metric: str, ruler: str) -> Axis:
    """A metric's axis."""
    if metric != FD:
        return Axis(metric)
    return Axis(f"Fréchet distance ({ruler})" if ruler else "Fréchet distance")


def metric_charts(run: Facts, metrics: Sequence[str], name: str) -> list[Chart]:
    """Metrics of a run over its rounds; of the distance, the best round is ringed."""
    charts = []
    for i, metric in enumerate(metrics):
        measured = series(run.rounds, metric)
        lines = [Line(metric, [r.number for r, _ in measured], [v for _, v in measured])]
        lowest = best(run.rounds)
        if metric == FD and lowest and len(measured) > 1:
            lines.append(Line("best", [lowest[0].number], [lowest[1]], 1, ring=True))
        title = "fd (lower is better)" if metric == FD else metric
        charts.append(draw(title, lines, _ROUND, _about(metric, run.ruler), f"{name}m{i}"))
    return charts


def traffic_charts(rounds: Sequence[Round]) -> list[Chart]:
    """Bytes and seconds by round, and bytes until then against the same arrays as float32."""
    if not rounds:
        return []
    n = [r.number for r in rounds]
    up, down = [r.bytes_up for r in rounds], [r.bytes_down for r in rounds]
    each = [Line("up", n, up, 0), Line("down", n, down, 1)]
    so_far = [Line("up", n, list(accumulate(up)), 0), Line("down", n, list(accumulate(down)), 1)]
    if traffic(rounds).dense_up is not None:
        dense_up = [r.floats_up or 0 for r in rounds]
        dense_down = [r.floats_down or 0 for r in rounds]
        so_far.append(Line("up as float32", n, list(accumulate(dense_up)), 0, dash=1))
        so_far.append(Line("down as float32", n, list(accumulate(dense_down)), 1, dash=1))
    seconds = [Line("seconds", n, [r.seconds for r in rounds], 2)]
    return [
        draw(
            "Bytes in each round, all clients", each, _ROUND, Axis("bytes in a round", "bytes", from_zero=True), "each"
        ),
        draw("Bytes so far, all clients", so_far, _ROUND, Axis("bytes until then", "bytes", from_zero=True), "sofar"),
        draw("Time in each round", seconds, _ROUND, Axis("seconds", from_zero=True), "time"),
    ]


@dataclass(frozen=True)
class Race:
    """One metric of several runs: over rounds, over bytes and over time, and as numbers."""

    metric: str
    charts: Sequence[Chart]
    table: Table


def races(runs: Sequence[Facts]) -> list[Race]:
    """Every metric that runs have in common."""
    return [_race(runs, metric, f"race{i}") for i, metric in enumerate(shared_metrics(runs))]


def _race(runs: Sequence[Facts], metric: str, name: str) -> Race:
    rulers = {run.ruler for run in runs}
    y = _about(metric, rulers.pop() if len(rulers) == 1 else "")
    by_round, by_bytes, by_time = [], [], []
    for colour, run in enumerate(runs):
        cost = dict(zip((r.number for r in run.rounds), sent_so_far(run.rounds), strict=True))
        time = dict(zip((r.number for r in run.rounds), time_so_far(run.rounds), strict=True))
        measured = [(r.number, value) for r, value in series(run.rounds, metric)]
        values = [value for _, value in measured]
        by_round.append(Line(run.label, [n for n, _ in measured], values, colour))
        by_bytes.append(Line(run.label, [cost[n] for n, _ in measured], values, colour))
        by_time.append(Line(run.label, [time[n] for n, _ in measured], values, colour))
    bytes_axis = Axis("bytes up and down, all clients", "bytes", log=True)
    charts = [
        draw(f"{metric} over rounds", by_round, _ROUND, y, f"{name}r", legend=False),
        draw(f"{metric} over bytes", by_bytes, bytes_axis, y, f"{name}b", legend=False),
        draw(f"{metric} over time", by_time, Axis("seconds"), y, f"{name}s", legend=False),
    ]
    return Race(metric, charts, _numbers(by_round, metric))


def _numbers(lines: Sequence[Line], metric: str) -> Table:
    found = [dict(zip(line.x, line.y, strict=True)) for line in lines]
    rounds = sorted({n for values in found for n in values})
    shown = thinned(rounds, LONGEST)
    return Table(
        title=f"{metric} by round",
        columns=["round", *(line.name for line in lines)],
        rows=[[f"{n:.0f}", *(number(v[n]) if n in v else "" for v in found)] for n in shown],
        note=f"{len(shown)} of {len(rounds):,} rounds." if len(shown) < len(rounds) else "",
    )


def run_legend(runs: Sequence[Facts]) -> list[Line]:
    """The colours of the runs in every chart of a comparison."""
    return [Line(run.label, [], [], colour) for colour, run in enumerate(runs)]
