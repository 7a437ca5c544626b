"""Results of `vitrail audit`, read from audit.json, as tables and charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from vitrail.auditing.attack import KEYS, Case, Figure, Finding, Lower
from vitrail.report.charts import Axis, Chart, Line, draw
from vitrail.report.evaluation import read_results, with_interval
from vitrail.report.images import ReportImage, read_image
from vitrail.report.table import Table
from vitrail.utils.quantities import number


@dataclass(frozen=True)
class AuditResults:
    """The results of all attacks on a run, and the images that they name."""

    verdict: str
    findings: Sequence[Finding]
    images: Mapping[str, ReportImage]


def read_audit(path: Path) -> tuple[AuditResults | None, str]:
    """Read an audit; arguments and result as for `read_results`."""
    return read_results(path, lambda tree: _audit(tree, path.parent), "vitrail audit")


def _audit(tree: Any, folder: Path) -> AuditResults:
    findings = TypeAdapter(list[Finding]).validate_python(_with_names_and_floats(tree["findings"]))
    named = {f.image_file: read_image(folder / Path(f.image_file).name) for f in findings}  # only of this folder
    return AuditResults(str(tree.get("verdict", "")), findings, {k: v for k, v in named.items() if v})


def _with_names_and_floats(value: Any) -> Any:
    """Return a tree with NaN and infinity, which JSON has as null and "infinite", and with the names of fields."""
    names = {key: name for name, key in KEYS.items()}
    if isinstance(value, dict):
        return {names.get(k, k): _with_names_and_floats(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_with_names_and_floats(v) for v in value]
    return {None: nan, "infinite": inf}.get(value, value)


def audit_tables(audit: AuditResults) -> list[Table]:
    """Return tables of bounds, and of figures of attacks without bounds."""
    bounds = Table(
        "Lower and upper bounds on ε",
        ["attack", "lower bound on ε found", "upper bound on ε claimed", "how", "assumes"],
        [[f.attack, *lower_cells(x)] for f in audit.findings for x in f.lowers],
        "Lower bounds have 95% confidence. Each claim is for the same replies that were attacked.",
    )
    figures = [[f.attack, *figure_cells(x)] for f in audit.findings for x in f.figures]
    others = Table("Other attacks", ["attack", "figure", "value", "random guess"], figures)
    note = "In brackets: 95% intervals."
    cases = [Table(f.attack.capitalize(), *case_rows(f.cases), note) for f in audit.findings if f.cases]
    return [table for table in (bounds, others, *cases) if table.rows]


def audit_charts(audit: AuditResults, name: str) -> list[Chart]:
    """Return charts of the attackers' losses by message."""
    charts = []
    for i, curves in enumerate(c for f in audit.findings for c in f.curves):
        lines = []
        for color, (attacker, values) in enumerate(curves.lines.items()):
            points = [(n, v) for n, v in enumerate(values, 1) if isfinite(v)]
            lines.append(Line(attacker, [n for n, _ in points], [v for _, v in points], color))
        charts.append(draw(curves.title, lines, Axis("message", "round", log=False), Axis("loss"), f"{name}a{i}"))
    return charts


def lower_cells(lower: Lower) -> list[str]:
    """Return the cells of a lower bound and its claim."""
    claimed = f"{lower.claimed:.3g}" if isfinite(lower.claimed) else "nothing"
    mark = " (refuted)" if lower.refutes else ""
    return [f"{lower.epsilon:.3g} at δ = {lower.delta:g}{mark}", claimed, lower.how, lower.assumes]


def figure_cells(figure: Figure) -> list[str]:
    """Return the cells of a figure, its interval and the value of a random guess."""
    guess = number(figure.random_guess) if isfinite(figure.random_guess) else ""
    note = f" ({figure.note})" if figure.note else ""
    return [figure.name + note, with_interval(figure), guess]


def case_rows(cases: Sequence[Case]) -> tuple[list[str], list[list[str]]]:
    """Return column titles, and one row per attacker and victim."""
    titles = ["attacker", "user", *(figure.name for figure in cases[0].figures), "remark"]
    return titles, [[c.attacker, c.victim, *map(with_interval, c.figures), c.note] for c in cases]
