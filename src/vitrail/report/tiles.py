"""What ran and what it came to, in a few words and figures."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.report.facts import Facts
from vitrail.report.rounds import FD, best, series
from vitrail.report.traffic import traffic
from vitrail.utils.quantities import duration, number, plural, size


@dataclass(frozen=True)
class Tile:
    """A headline figure."""

    name: str
    value: str
    detail: str = ""


def what_ran(run: Facts) -> list[Tile]:
    """The run in words."""
    planned = run.setting("rounds")
    done = f"{len(run.rounds):,}"
    clients = run.settings.get("clients", len(run.clients))
    said = [
        Tile("Method", run.setting("method", "unknown")),
        Tile("Data", run.data),
        Tile("Clients", f"{clients:,}" if isinstance(clients, int) else str(clients)),
        Tile("Partition", run.setting("partition", "unknown")),
        Tile("Rounds", done if done == planned or not planned else f"{done} of {planned}"),
        Tile("Seed", run.setting("seed", "unknown")),
        Tile("Vitrail", run.version),
    ]
    if features := run.about.get("features"):
        said.append(Tile("Features", str(features)))
    return said


def headline(run: Facts) -> list[Tile]:
    """The figures that a reader looks for first."""
    sent = traffic(run.rounds)
    seconds = sum(r.seconds for r in run.rounds)
    tiles = [
        _model(run),
        Tile("Sent up", size(sent.up), f"{size(sent.per_up)} a client and round"),
        Tile("Sent down", size(sent.down), f"{size(sent.per_down)} a client and round"),
    ]
    if (saving := sent.saving()) is not None:
        tiles.append(
            Tile("Against float32", f"{saving:.3g} ×", "fewer bytes, up and down" if saving >= 1 else "the bytes")
        )
    each = f"{duration(seconds / len(run.rounds))} a round" if run.rounds else ""
    tiles += [Tile("Time", duration(seconds), each), _distance(run)]
    tiles.append(_privacy(run.privacy))
    return tiles


def _privacy(says: str) -> Tile:
    if says.startswith("ε"):
        value, _, what = says.partition(" at ")
        return Tile("Privacy", value, f"at {what}")
    said, _, why = says.partition(":")
    return Tile("Privacy", said[:1].upper() + said[1:], why.strip())


def _model(run: Facts) -> Tile:
    if run.model_size is None:
        return Tile("Model", "None yet", "the run is not finished")
    kept = f"best measured round kept too: {size(run.best_size)}" if run.best_size is not None else "model.safetensors"
    return Tile("Model", size(run.model_size), kept)


def _distance(run: Facts) -> Tile:
    measured, lowest = series(run.rounds, FD), best(run.rounds)
    if lowest is None and (named := series(run.rounds, "accuracy")):
        last, value = named[-1]
        most = max(named, key=lambda one: one[1])
        return Tile("Accuracy", number(most[1]), f"best, round {most[0].number}; last {number(value)}")
    if lowest is None:
        return Tile("Distance (fd)", "Not measured", "along the way")
    last, value = measured[-1]
    if run.best_size is None:  # a private run keeps its last round alone
        return Tile("Distance (fd)", number(value), f"round {last.number}" + (f"; by {run.ruler}" if run.ruler else ""))
    detail = f"best, round {lowest[0].number}; last {number(value)}, round {last.number}"
    if lowest[0] is last:
        detail = f"best and last, round {last.number}"
    return Tile("Distance (fd)", number(lowest[1]), detail + (f"; by {run.ruler}" if run.ruler else ""))


def summary(run: Facts) -> str:
    """One line that names a run."""
    rounds = plural(len(run.rounds), "round")
    return f"{run.setting('method', 'a run')} on {run.data}, {run.setting('clients', '?')} clients, {rounds}"
