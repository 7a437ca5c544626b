"""What `vitrail evaluate` measured, read from evaluation.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import Any

from vitrail.metrics.measure import Measure
from vitrail.report.tables import Table
from vitrail.utils.quantities import number


@dataclass(frozen=True)
class Evaluation:
    """Measures of each model of a run, against the same real pictures."""

    data: str
    real: str
    models: dict[str, list[Measure]]

    @property
    def against(self) -> str:
        """The real pictures in words."""
        return " of ".join(filter(None, [self.real, self.data]))


def read_evaluation(path: Path) -> tuple[Evaluation | None, str]:
    """The evaluation, or None where there is none, and what is wrong with it."""
    try:
        found = json.loads(path.read_text("utf-8"))
        models = {str(c["name"]): [_measure(m) for m in c["measures"]] for c in found["columns"]}
        return Evaluation(str(found.get("data", "")), str(found.get("real", "")), models), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        return None, f"evaluation.json could not be read ({type(e).__name__}: {e}); `vitrail evaluate` writes it anew."


def _measure(m: dict[str, Any]) -> Measure:
    better = m.get("better")
    return Measure(
        name=str(m["name"]),
        value=float(m["value"]),
        low=nan if m.get("low") is None else float(m["low"]),
        high=nan if m.get("high") is None else float(m["high"]),
        n_real=int(m.get("n_real") or 0),
        n_fake=int(m.get("n_fake") or 0),
        better="lower" if better == "lower" else "higher" if better == "higher" else "",
        extractor=str(m.get("extractor") or ""),
        note=str(m.get("note") or ""),
    )


def key(m: Measure) -> str:
    """What two values must have in common to be compared, and which of them is better."""
    said = ", ".join(filter(None, [m.extractor, f"{m.better} is better" if m.better else ""]))
    return m.name + (f" ({said})" if said else "")


def interval(m: Measure) -> str:
    """Its bounds, or nothing where it has none."""
    return f"{number(m.low)} to {number(m.high)}" if isfinite(m.low) and isfinite(m.high) else ""


def with_interval(m: Measure) -> str:
    """A value, and its bounds in brackets."""
    return number(m.value) + (f" ({interval(m)})" if interval(m) else "")


def evaluation_tables(evaluation: Evaluation) -> list[Table]:
    """One table a model: a row a measure, notes below."""
    return [
        Table(
            title=model[:1].upper() + model[1:],
            columns=["measure", "value", "95% interval", "better", "measured with", "generated", "real"],
            rows=[_row(m) for m in measures],
            note=_notes(measures),
        )
        for model, measures in evaluation.models.items()
    ]


def _row(m: Measure) -> list[str]:
    pictures = [f"{n:,}" if n else "" for n in (m.n_fake, m.n_real)]
    return [m.name, number(m.value), interval(m), m.better, m.extractor, *pictures]


def _notes(measures: Sequence[Measure]) -> str:
    """Each note once, after the names of the measures that it is about."""
    about: dict[str, list[str]] = {}
    for m in measures:
        if m.note:
            about.setdefault(m.note.rstrip("."), []).append(m.name)
    return " ".join(f"{', '.join(dict.fromkeys(names))}: {note}." for note, names in about.items())
