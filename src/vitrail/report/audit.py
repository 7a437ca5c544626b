"""What `vitrail audit` found, read from audit.json: lower bounds on ε beside the claim, and other attacks' figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any

from vitrail.report.quantities import number
from vitrail.report.tables import Table


@dataclass(frozen=True)
class Lower:
    """A lower bound on ε, and what was claimed."""

    epsilon: float
    claimed: float
    delta: float
    how: str
    assumes: str


@dataclass(frozen=True)
class Figure:
    """A number, its interval, and what it is by chance."""

    name: str
    value: float
    low: float
    high: float
    chance: float
    note: str


@dataclass(frozen=True)
class Found:
    """An attack."""

    attack: str
    about: str
    note: str
    lowers: Sequence[Lower]
    figures: Sequence[Figure]


@dataclass(frozen=True)
class Audited:
    """All attacks on a run."""

    claim: str
    verdict: str
    refuted: bool
    findings: Sequence[Found]


def read_audit(path: Path) -> tuple[Audited | None, str]:
    """The audit, or None where there is none, and what is wrong with it."""
    try:
        tree = json.loads(path.read_text("utf-8"))
        findings = [_found(f) for f in tree["findings"]]
        claim = str(tree["claim"]["says"])
        return Audited(claim, str(tree.get("verdict", "")), tree.get("refuted") is True, findings), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        return None, f"audit.json could not be read ({type(e).__name__}: {e}); `vitrail audit` writes it anew."


def _found(f: dict[str, Any]) -> Found:
    lowers = [
        Lower(
            epsilon=_number(x["epsilon"]),
            claimed=_number(x["claimed"]),
            delta=_number(x["delta"]),
            how=str(x.get("how") or ""),
            assumes=str(x.get("assumes") or ""),
        )
        for x in f.get("lowers", [])
    ]
    figures = [
        Figure(
            name=str(x["name"]),
            value=_number(x["value"]),
            low=_number(x.get("low")),
            high=_number(x.get("high")),
            chance=_number(x.get("chance")),
            note=str(x.get("note") or ""),
        )
        for x in f.get("figures", [])
    ]
    return Found(str(f["attack"]), str(f.get("about", "")), str(f.get("note") or ""), lowers, figures)


def _number(value: Any) -> float:
    return inf if value == "infinite" else nan if value is None else float(value)


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
    return tables


def lower_cells(lower: Any) -> list[str]:
    """A bound beside the claim."""
    claimed = f"{lower.claimed:.3g}" if isfinite(lower.claimed) else "nothing"
    mark = "" if lower.epsilon <= lower.claimed else " (refuted)"
    return [f"{lower.epsilon:.3g} at δ = {lower.delta:g}{mark}", claimed, lower.how, lower.assumes]


def figure_cells(figure: Any) -> list[str]:
    """A figure with its interval, and what chance gives."""
    interval = f" ({number(figure.low)} to {number(figure.high)})" if isfinite(figure.low + figure.high) else ""
    chance = number(figure.chance) if isfinite(figure.chance) else ""
    note = f" ({figure.note})" if figure.note else ""
    return [figure.name + note, number(figure.value) + interval, chance]
