"""Tables and charts of an audit: bounds and claims, figures of other attacks, comparison of attackers."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from vitrail.report.audit import Audit
from vitrail.report.charts import Axis, Chart, Line, draw
from vitrail.report.table import Table
from vitrail.utils.quantities import number


def audit_tables(audit: Audit) -> list[Table]:
    """Return tables of bounds, and of figures of attacks without bounds."""
    tables = []
    bounds = [[f.attack, *lower_cells(x)] for f in audit.findings for x in f.lowers]
    if bounds:
        tables.append(
            Table(
                "Lower and upper bounds on ε",
                ["attack", "lower bound on ε found", "upper bound on ε claimed", "how", "assumes"],
                bounds,
                "Lower bounds have 95% confidence. Each claim is for the same replies that were attacked.",
            )
        )
    figures = [[f.attack, *figure_cells(x)] for f in audit.findings for x in f.figures]
    if figures:
        tables.append(Table("Other attacks", ["attack", "figure", "value", "random guess"], figures))
    for f in audit.findings:
        if f.cases:
            columns, rows = case_rows(f.cases)
            tables.append(Table(f.attack.capitalize(), columns, rows, "In brackets: 95% intervals."))
    return tables


def audit_charts(audit: Audit, name: str) -> list[Chart]:
    """Return charts of the attackers' losses by message."""
    charts = []
    for i, curves in enumerate(c for f in audit.findings for c in f.curves):
        lines = []
        for color, (attacker, values) in enumerate(curves.lines.items()):
            points = [(n, v) for n, v in enumerate(values, 1) if isfinite(v)]
            lines.append(Line(attacker, [n for n, _ in points], [v for _, v in points], color))
        charts.append(draw(curves.title, lines, Axis("message", "round", log=False), Axis("loss"), f"{name}a{i}"))
    return charts


def lower_cells(lower: Any) -> list[str]:
    """Return the cells of a lower bound and its claim."""
    claimed = f"{lower.claimed:.3g}" if isfinite(lower.claimed) else "nothing"
    mark = "" if lower.epsilon <= lower.claimed else " (refuted)"
    return [f"{lower.epsilon:.3g} at δ = {lower.delta:g}{mark}", claimed, lower.how, lower.assumes]


def figure_cells(figure: Any) -> list[str]:
    """Return the cells of a figure, its interval and the value of a random guess."""
    chance = number(figure.chance) if isfinite(figure.chance) else ""
    note = f" ({figure.note})" if figure.note else ""
    return [figure.name + note, _with_interval(figure), chance]


def case_rows(cases: Sequence[Any]) -> tuple[list[str], list[list[str]]]:
    """Return column titles, and one row per attacker and victim."""
    titles = ["attacker", "user", *(figure.name for figure in cases[0].figures), "remark"]
    return titles, [[c.attacker, c.victim, *map(_with_interval, c.figures), c.note] for c in cases]


def _with_interval(figure: Any) -> str:
    interval = f" ({number(figure.low)} to {number(figure.high)})" if isfinite(figure.low + figure.high) else ""
    return number(figure.value) + interval
