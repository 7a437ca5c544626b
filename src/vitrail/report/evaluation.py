"""Results of `vitrail evaluate`, read from evaluation.json, as tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

from vitrail.metrics.measure import Measure
from vitrail.report.intervals import interval
from vitrail.report.table import Table
from vitrail.utils.quantities import number


@dataclass(frozen=True)
class Evaluation:
    """Measures of each model of a run, against the same real images."""

    data: str
    real: str
    models: dict[str, list[Measure]]

    @property
    def against(self) -> str:
        """Description of the real images."""
        return " of ".join(filter(None, [self.real, self.data]))


def read_evaluation(path: Path) -> tuple[Evaluation | None, str]:
    """Read an evaluation.

    Returns:
        The evaluation, or None if there is none; and a description of the problem if it cannot be read.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
        models = {str(c["name"]): [_measure(m) for m in c["measures"]] for c in found["columns"]}
        return Evaluation(str(found.get("data", "")), str(found.get("real", "")), models), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        return None, f"evaluation.json could not be read ({type(e).__name__}: {e}); run `vitrail evaluate` again."


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
    """Return the column title of a measure: values with different titles cannot be compared."""
    details = ", ".join(filter(None, [m.extractor, f"{m.better} is better" if m.better else ""]))
    return m.name + (f" ({details})" if details else "")


def evaluation_tables(evaluation: Evaluation) -> list[Table]:
    """Return one table per model, with one row per measure and notes below."""
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
    counts = [f"{n:,}" if n else "" for n in (m.n_fake, m.n_real)]
    return [m.name, number(m.value), interval(m), m.better, m.extractor, *counts]


def _notes(measures: Sequence[Measure]) -> str:
    """Return each note once, after the names of its measures."""
    about: dict[str, list[str]] = {}
    for m in measures:
        if m.note:
            about.setdefault(m.note.rstrip("."), []).append(m.name)
    return " ".join(f"{', '.join(dict.fromkeys(names))}: {note}." for note, names in about.items())
