"""Tables that compare runs: settings that differ, cost, distance, evaluation."""

from __future__ import annotations

from collections.abc import Sequence

from vitrail.experiment.settings import FREE
from vitrail.report.evaluation import key, with_interval
from vitrail.report.facts import Facts
from vitrail.report.rounds import FD, FD_NOTE, best, series, traffic
from vitrail.report.table import Table
from vitrail.utils.quantities import duration, number, size

_IGNORED = {"method", "rounds"} | set(FREE) - {"init_from"}  # have their own columns, or do not change results


def differing(runs: Sequence[Facts]) -> list[str]:
    """Return the settings in which runs differ; a setting is compared only between methods that have it."""
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in _IGNORED)
    return [name for name in names if len({repr(run.settings.get(name)) for run in _having(runs, name)}) > 1]


def _having(runs: Sequence[Facts], setting: str) -> list[Facts]:
    methods = {run.setting("method") for run in runs if setting in run.settings}
    return [run for run in runs if run.setting("method") in methods]


def comparison_tables(runs: Sequence[Facts]) -> list[Table]:
    """Return a table of cost and distance with one row per run, and one table per kind of evaluated model."""
    differ = differing(runs)
    columns = ["run", "method", "differing settings", "rounds", "up", "down", "model", "time"]
    title, rows, note = "Cost", [_costs(run, differ) for run in runs], "Bytes are totals over all clients."
    if any(series(run.rounds, FD) for run in runs):
        title, columns, note = f"{title} and distance", [*columns, "last fd", "best fd"], note + _distance_note(runs)
        rows = [[*row, *_distances(run)] for row, run in zip(rows, runs, strict=True)]
    costs = Table(title, columns, rows, note)
    models = dict.fromkeys(model for run in runs if run.evaluation for model in run.evaluation.models)
    return [costs, *(_evaluated(runs, model) for model in models)]


def _evaluated(runs: Sequence[Facts], model: str) -> Table:
    """Return the measures of one kind of model, in the runs that have it."""
    found = {run.label: {key(m): m for m in run.evaluation.models.get(model, [])} for run in runs if run.evaluation}
    keys = list(dict.fromkeys(k for measures in found.values() for k in measures))
    rows = [[label, *(with_interval(of[k]) if k in of else "" for k in keys)] for label, of in found.items() if of]
    return Table(f"Evaluation, {model}", ["run", *keys], rows, "In brackets: 95% intervals.")


def _distance_note(runs: Sequence[Facts]) -> str:
    networks = sorted({run.feature_network or "an unknown network" for run in runs if series(run.rounds, FD)})
    caution = ": compare it only between runs with the same network" if len(networks) > 1 else ""
    return f" fd (lower is better) was measured with {' and with '.join(networks)}{caution}; {FD_NOTE}."


def _costs(run: Facts, differ: Sequence[str]) -> list[str]:
    sent = traffic(run.rounds)
    return [
        run.label,
        run.setting("method"),
        ", ".join(f"{name}={run.settings[name]}" for name in differ if name in run.settings),
        f"{len(run.rounds):,}",
        size(sent.up),
        size(sent.down),
        "" if run.model_size is None else size(run.model_size),
        duration(sum(r.seconds for r in run.rounds)),
    ]


def _distances(run: Facts) -> list[str]:
    if (lowest := best(run.rounds)) is None:
        return ["", ""]
    return [number(series(run.rounds, FD)[-1][1]), f"{number(lowest[1])} (round {lowest[0].number})"]
