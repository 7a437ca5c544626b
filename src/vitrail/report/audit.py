"""Results of `vitrail audit`, read from audit.json: lower bounds on ε, and figures of other attacks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import Any

from vitrail.report.images import ReportImage, read_image


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on ε, and the claimed upper bound."""

    epsilon: float
    claimed: float
    delta: float
    how: str
    assumes: str


@dataclass(frozen=True)
class Figure:
    """A value with its interval, and the value of a random guess."""

    name: str
    value: float
    low: float
    high: float
    chance: float
    note: str


@dataclass(frozen=True)
class Case:
    """One attacker against one victim."""

    attacker: str
    victim: str
    figures: Sequence[Figure]
    note: str


@dataclass(frozen=True)
class Curves:
    """One line per attacker, over messages."""

    title: str
    lines: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Finding:
    """The result of one attack."""

    attack: str
    about: str
    note: str
    lowers: Sequence[LowerBound]
    figures: Sequence[Figure]
    cases: Sequence[Case]
    curves: Sequence[Curves]
    image: ReportImage | None
    caption: str


@dataclass(frozen=True)
class Audit:
    """The results of all attacks on a run."""

    claim: str
    verdict: str
    refuted: bool
    findings: Sequence[Finding]


def read_audit(path: Path) -> tuple[Audit | None, str]:
    """Read an audit.

    Returns:
        The audit, or None if there is none; and a description of the problem if it cannot be read.
    """
    try:
        tree = json.loads(path.read_text("utf-8"))
        findings = [_finding(f, path.parent) for f in tree["findings"]]
        claim = str(tree["claim"]["says"])
        return Audit(claim, str(tree.get("verdict", "")), tree.get("refuted") is True, findings), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        return None, f"audit.json could not be read ({type(e).__name__}: {e}); run `vitrail audit` again."


def _finding(f: dict[str, Any], folder: Path) -> Finding:
    lowers = [
        LowerBound(
            epsilon=_number(x["epsilon"]),
            claimed=_number(x["claimed"]),
            delta=_number(x["delta"]),
            how=str(x.get("how") or ""),
            assumes=str(x.get("assumes") or ""),
        )
        for x in f.get("lowers", [])
    ]
    cases = [
        Case(str(c["attacker"]), str(c["victim"]), _figures(c["figures"]), str(c.get("note") or ""))
        for c in f.get("cases", [])
    ]
    curves = [
        Curves(str(c["title"]), {str(k): [_number(v) for v in line] for k, line in c["lines"].items()})
        for c in f.get("curves", [])
    ]
    name = Path(str(f.get("picture") or "")).name  # only files of this folder
    return Finding(
        attack=str(f["attack"]),
        about=str(f.get("about", "")),
        note=str(f.get("note") or ""),
        lowers=lowers,
        figures=_figures(f.get("figures", [])),
        cases=cases,
        curves=curves,
        image=read_image(folder / name) if name else None,
        caption=str(f.get("caption") or ""),
    )


def _figures(found: Sequence[dict[str, Any]]) -> list[Figure]:
    return [
        Figure(
            name=str(x["name"]),
            value=_number(x["value"]),
            low=_number(x.get("low")),
            high=_number(x.get("high")),
            chance=_number(x.get("chance")),
            note=str(x.get("note") or ""),
        )
        for x in found
    ]


def _number(value: Any) -> float:
    return inf if value == "infinite" else nan if value is None else float(value)
