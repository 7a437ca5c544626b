"""The table of a comparison: mean and spread over seeds, for a terminal, markdown, CSV and HTML."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from vitrail.experiment.compare import Entry, EvalConfig
from vitrail.experiment.run_dir import RunDir, best_row
from vitrail.experiment.settings import to_dict
from vitrail.metrics.frechet import BIASED
from vitrail.metrics.measure import Measure
from vitrail.privacy.ledger import read as read_ledger
from vitrail.report.evaluation import ARROWS, with_interval
from vitrail.report.table import Table
from vitrail.utils.quantities import number, size, whole

Key = tuple[str, str]  # a measure and the network it was taken with
HIDDEN = ("kid", "precision", "recall", "density", "coverage", "linear-probe")  # in the CSV, or there were no room
OF = " of client "  # in the name of one client's measure
SAME = (
    *("data", "size", "test_fraction", "labels", "clients", "partition", "server_fraction"),
    *("rounds", "clients_per_round"),
)


def differing(found: Sequence[Entry]) -> list[str]:
    """Settings that are not the same in all runs that have them, in their own order."""
    trees = [to_dict(e.settings) for e in found]
    names = dict.fromkeys(name for tree in trees for name in tree if name not in ("out", "seed"))
    return [n for n in names if len({repr(t[n]) for t in trees if n in t}) > 1]


def standings(found: Sequence[Entry], how: EvalConfig) -> Table:
    """Return the table of results and costs, one line per run; several seeds give mean ± standard deviation."""
    keys = [k for k in _keys(found) if k[0] not in HIDDEN and OF not in k[0]]
    columns = ["run", "seeds", *(f"{name} {_arrow(found, (name, by))}" for name, by in keys)]
    columns += ["ε", "round", "up", "down", "model", "seconds"]
    rows = []
    for e in found:
        cells = [_over_seeds(e, k) for k in keys]
        eps = dict.fromkeys(" per ".join(filter(None, _epsilon(f))) for f in e.runs)
        rows.append([e.name, str(len(e.runs)), *cells, ", ".join(eps), *_costs(e, how)])
    return Table("Comparison", columns, rows, notes(found, how))


def by_settings(found: Sequence[Entry]) -> list[Table]:
    """Return one table per metric, as in papers: one line per run, one column per setting of [each]."""
    columns = list(dict.fromkeys(e.where for e in found))
    if len(columns) < 2:
        return []
    lines: dict[str, dict[str, Entry]] = {}
    for e in found:
        lines.setdefault(e.name.removeprefix(f"{e.where}, "), {})[e.where] = e
    tables = []
    for name in dict.fromkeys(n for n, _ in _keys(found) if n not in HIDDEN and OF not in n):
        keys = [key for key in _keys(found) if key[0] == name]  # other data may have another network
        rows = []
        for run, at in lines.items():
            cells = [[_over_seeds(at[place], key) for key in keys] if place in at else [] for place in columns]
            rows.append([run, *(next(filter(None, of), "") for of in cells)])
        title = f"{name} {_arrow(found, keys[0])}"
        tables.append(Table(title, [title, *columns], rows, "± and brackets as above; empty: not run."))
    return tables


def by_clients(found: Sequence[Entry]) -> Table | None:
    """Return the table of clients, one column per run: the distance of each client's own generator, if measured."""
    keys = [k for k in _keys(found) if OF in k[0]]
    rows = [[f"{name} {_arrow(found, (name, by))}", *(_over_seeds(e, (name, by)) for e in found)] for name, by in keys]
    note = "Each client's own generator against held-out images after the client's transform."
    return Table("By client", ["", *(e.name for e in found)], rows, note) if rows else None


def notes(found: Sequence[Entry], how: EvalConfig) -> str:
    """Return which settings were the same, which differed, and how models were measured."""
    differ = differing(found)
    trees = [to_dict(e.settings) for e in found]
    named = dict.fromkeys(("method", *SAME, *(n for e in found for n in sorted(e.settings.model_fields_set))))
    same = ", ".join(f"{n}={trees[0][n]}" for n in named if all(n in t for t in trees) and n not in differ)
    parts = [f"The same in all runs: {same}."] if same else []
    if differ:
        parts.append(f"Different: {', '.join(differ)}.")
    which = "best measured round (selected on other held-out images)" if how.best else "last round"
    made = f"{how.n:,} images" + (f" ({how.fid_n:,} for fid)" if "fid" in how.families else "")
    networks = [f"; {name} by {by}" for name, by in _keys(found) if name == "fd-vitrail"]
    real = sorted({m.n_real for e in found for ms in e.found for m in ms if m.name not in HIDDEN})
    against = f"{' or '.join(f'{n:,}' for n in real)} held-out ones" if real else "held-out ones"
    parts.append(f"Measured: the stored model of the {which}, {made} against {against}{''.join(networks)}.")
    parts.append("Column round: the round of the measured model, by seed where they differ.")
    parts.append("± is the standard deviation over seeds; with one seed, brackets are the 95% interval over images.")
    parts.append("compare.csv also has kid, precision, recall, density and coverage." * bool(networks))
    if deltas := {f"{p['delta']:g}" for e in found for p in map(_privacy, e.runs) if p["private"]}:
        parts.append(f"ε is the claim of a run's ledger, at δ = {' or '.join(sorted(deltas))}.")
    parts.append(_compute(found))
    if remarks := _remarks(found):
        parts.append(remarks)
    if failed := [text for e in found for text in e.failed]:
        parts.append("Failed: " + "; ".join(failed) + ".")
    return " ".join(filter(None, parts))


def _compute(found: Sequence[Entry]) -> str:
    """Return a note if the runs' compute differed."""
    took = [mean(_seconds(f) for f in e.runs) for e in found if e.runs]
    if len(took) < 2 or max(took) < 10 or max(took) <= 1.5 * min(took):
        return ""
    return f"Compute was not the same: rounds took from {min(took):.0f} to {max(took):.0f} seconds in total."


def _seconds(folder: Path) -> float:
    return float(_total(folder, "seconds"))


def _total(folder: Path, name: str) -> Any:
    return sum(row[name] for row in RunDir(folder).rows())


def _privacy(folder: Path) -> dict[str, Any]:
    """Return the last claim of a run's ledger, with the unit of the first."""
    claims = [e for e in read_ledger(RunDir(folder).ledger) if "says" in e]
    return {"unit": "", **claims[0], **claims[-1]}


def _epsilon(folder: Path) -> tuple[str, str]:
    """ε, and the unit that it protects: an image or a client."""
    found = _privacy(folder)
    if not found["private"]:
        return "not proven" if found.get("assumed") else "none", ""
    return f"{found['epsilon']:.3g}", "image" if found["unit"] == "example" else "client"


def _remarks(found: Sequence[Entry]) -> str:
    """Return notes on metrics with too few samples for their dimension."""
    few = [m for e in found for ms in e.found for m in ms if m.name not in HIDDEN and BIASED in m.note]
    texts = dict.fromkeys(f"{m.name.split(OF)[0]}: {m.note[m.note.index(BIASED) :]}" for m in few)
    return ". ".join(texts) + "." * bool(few)


def markdown(table: Table) -> str:
    """A table for a document."""
    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"{body}\n\n{table.note}\n"


def as_csv(found: Sequence[Entry]) -> str:
    """Return every measure of every run and seed, one per line, for other programs."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = ["run", "seed", "measure", "by", "value", "low", "high", "n_real", "n_fake", "note", "folder"]
    writer.writerow([*columns, "epsilon", "per", "bytes_up", "bytes_down", "seconds"])
    for e in found:
        for folder, measures in zip(e.runs, e.found, strict=True):
            costs = [*_epsilon(folder), *(_total(folder, k) for k in ("bytes_up", "bytes_down", "seconds"))]
            for m in measures:
                values = [m.value, m.low, m.high, m.n_real, m.n_fake, m.note]
                run = [e.name, folder.name.removeprefix("seed-")]
                writer.writerow([*run, m.name, m.extractor, *values, folder, *costs])
    return out.getvalue()


def _keys(found: Sequence[Entry]) -> list[Key]:
    return list(dict.fromkeys((m.name, m.extractor) for e in found for ms in e.found for m in ms))


def _all(e: Entry, key: Key) -> list[Measure]:
    return [m for ms in e.found for m in ms if (m.name, m.extractor) == key]


def _arrow(found: Sequence[Entry], key: Key) -> str:
    return next(ARROWS[m.better] for e in found for m in _all(e, key))


def _over_seeds(e: Entry, key: Key) -> str:
    found = _all(e, key)
    if len(found) == 1:
        return with_interval(found[0])
    values = [m.value for m in found]
    return f"{number(mean(values))} ± {number(stdev(values))}" if values else "failed" if e.failed else ""


def _costs(e: Entry, how: EvalConfig) -> list[str]:
    """Which round was measured; bytes of all clients in a run; the model file; seconds of all rounds."""
    if not e.runs:
        return [""] * 5
    rows = [RunDir(f).rows() for f in e.runs]
    model = [(RunDir(f).best if how.best else RunDir(f).model).stat().st_size for f in e.runs]
    best = [best_row(run) if how.best else None for run in rows]
    which = [str(b["round"] + 1 if b else len(run)) for b, run in zip(best, rows, strict=True)]
    up, down = (mean(_total(f, k) for f in e.runs) for k in ("bytes_up", "bytes_down"))
    return [
        ", ".join(which if len(set(which)) > 1 else which[:1]),
        size(up),
        size(down),
        size(mean(model)),
        whole(mean(map(_seconds, e.runs))),
    ]
