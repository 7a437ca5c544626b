"""An audit as tables and charts: bounds beside the claim, other attacks' figures, attackers beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from vitrail.report.audit import Audited
from vitrail.report.charts import Axis, Chart, Line, draw
from vitrail.report.tables import Table
from vitrail.utils.quantities import number


def audit_tables(audit: Audited) -> list[Table]:
    """Bounds, and figures of attacks that give none."""
    tables = []
    bounds = [[f.attack, *lower_cells(x)] for f in audit.findings for x in f.lowers]
    if bounds:
        tables.append(
            Table(
                "Lower and upper bounds on ε",
                ["attack", "ε found, at least", "ε claimed, at most", "how", "assumes"],
                bounds,
                "Bounds of 95% confidence; what is claimed is for the very answers that were attacked.",
            )
        )
    figures = [[f.attack, *figure_cells(x)] for f in audit.findings for x in f.figures]
    if figures:
        tables.append(Table("Other attacks", ["attack", "figure", "value", "by chance"], figures))
    for f in audit.findings:
        if f.cases:
            columns, rows = case_rows(f.cases)
            tables.append(Table(f.attack.capitalize(), columns, rows, "In brackets: 95% intervals."))
    return tables


def audit_charts(audit: Audited, name: str) -> list[Chart]:
    """What attackers came to, message by message."""
    charts = []
    for i, curves in enumerate(c for f in audit.findings for c in f.curves):
        lines = []
        for colour, (who, values) in enumerate(curves.lines.items()):
            points = [(n, v) for n, v in enumerate(values, 1) if isfinite(v)]
            lines.append(Line(who, [n for n, _ in points], [v for _, v in points], colour))
        charts.append(draw(curves.title, lines, Axis("message", "round", log=False), Axis("loss"), f"{name}a{i}"))
    return charts


def lower_cells(lower: Any) -> list[str]:
    """A bound beside the claim."""
    claimed = f"{lower.claimed:.3g}" if isfinite(lower.claimed) else "nothing"
    mark = "" if lower.epsilon <= lower.claimed else " (refuted)"
    return [f"{lower.epsilon:.3g} at δ = {lower.delta:g}{mark}", claimed, lower.how, lower.assumes]


def figure_cells(figure: Any) -> list[str]:
    """A figure with its interval, and what chance gives."""
    chance = number(figure.chance) if isfinite(figure.chance) else ""
    note = f" ({figure.note})" if figure.note else ""
    return [figure.name + note, _with_interval(figure), chance]


def case_rows(cases: Sequence[Any]) -> tuple[list[str], list[list[str]]]:
    """Titles, and a row for each attacker and victim."""
    titles = ["attacker", "user", *(figure.name for figure in cases[0].figures), "remark"]
    return titles, [[c.attacker, c.victim, *map(_with_interval, c.figures), c.note] for c in cases]


def _with_interval(figure: Any) -> str:
    interval = f" ({number(figure.low)} to {number(figure.high)})" if isfinite(figure.low + figure.high) else ""
    return number(figure.value) + interval
