"""Summary of a run: what ran, and its headline figures."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.report.facts import Facts
from vitrail.report.rounds import FD, best, series, traffic
from vitrail.utils.quantities import duration, number, plural, size


@dataclass(frozen=True)
class Tile:
    """A headline figure."""

    name: str
    value: str
    detail: str = ""


def what_ran(run: Facts) -> list[Tile]:
    """Return method, data, clients and versions of a run."""
    planned = run.setting("rounds")
    done = f"{len(run.rounds):,}"
    clients = run.settings.get("clients", len(run.clients))
    tiles = [
        Tile("Method", run.setting("method", "unknown")),
        Tile("Data", run.data),
        Tile("Clients", f"{clients:,}" if isinstance(clients, int) else str(clients)),
        Tile("Partition", run.setting("partition", "unknown")),
        Tile("Rounds", done if done == planned or not planned else f"{done} of {planned}"),
        Tile("Seed", run.setting("seed", "unknown")),
        Tile("Vitrail", run.version),
    ]
    if features := run.about.get("features"):
        tiles.append(Tile("Features", str(features)))
    return tiles


def headline(run: Facts) -> list[Tile]:
    """Return the most important figures of a run."""
    sent = traffic(run.rounds)
    seconds = sum(r.seconds for r in run.rounds)
    tiles = [
        _model(run),
        Tile("Sent up", size(sent.up), f"{size(sent.per_up)} per client and round"),
        Tile("Sent down", size(sent.down), f"{size(sent.per_down)} per client and round"),
    ]
    if (saving := sent.saving()) is not None:
        tiles.append(
            Tile("Compared with float32", f"{saving:.3g} ×", "fewer bytes, up and down" if saving >= 1 else "the bytes")
        )
    each = f"{duration(seconds / len(run.rounds))} per round" if run.rounds else ""
    tiles += [Tile("Time", duration(seconds), each), _distance(run)]
    tiles.append(_privacy(run.privacy))
    return tiles


def _privacy(statement: str) -> Tile:
    if statement.startswith("ε"):
        value, _, rest = statement.partition(" at ")
        return Tile("Privacy", value, f"at {rest}")
    value, _, reason = statement.partition(":")
    return Tile("Privacy", value[:1].upper() + value[1:], reason.strip())


def _model(run: Facts) -> Tile:
    if run.model_size is None:
        return Tile("Model", "None yet", "the run is not finished")
    best = f"model of the best round: {size(run.best_size)}" if run.best_size is not None else "model.safetensors"
    return Tile("Model", size(run.model_size), best)


def _distance(run: Facts) -> Tile:
    measured, lowest = series(run.rounds, FD), best(run.rounds)
    if lowest is None and (accuracy := series(run.rounds, "accuracy")):
        _, value = accuracy[-1]
        highest = max(accuracy, key=lambda measured: measured[1])
        return Tile("Accuracy", number(highest[1]), f"best, round {highest[0].number}; last {number(value)}")
    if lowest is None:
        reason = "the server has no images" if run.setting("data") == "nodes" else "no round, or too few test images"
        reason = "eval_every=0" if run.setting("eval_every") == "0" else reason
        return Tile("Distance (fd)", "Not measured", f"during training: {reason}")
    last, value = measured[-1]
    by = f"; by {run.feature_network}" if run.feature_network else ""
    if run.best_size is None:  # a private run stores only its last round
        return Tile("Distance (fd)", number(value), f"round {last.number}{by}")
    detail = f"best, round {lowest[0].number}; last {number(value)}, round {last.number}"
    if lowest[0] is last:
        detail = f"best and last, round {last.number}"
    return Tile("Distance (fd)", number(lowest[1]), detail + by)


def summary(run: Facts) -> str:
    """Return one line that describes a run."""
    rounds, clients = plural(len(run.rounds), "round"), run.setting("clients", "?")
    return f"{run.setting('method', 'a run')} on {run.data}, {clients} client{'s' * (clients != '1')}, {rounds}"
