"""Read the rounds of a run from metrics.jsonl, also if the file is damaged; the bytes that they sent."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from vitrail.utils.renamed import current_row

T = TypeVar("T")
FD = "fd"  # Fréchet distance between generated and real images, measured during training; lower is better
FD_NOTE = "a quick estimate from few images, which ranks the rounds of a run; for results use vitrail evaluate"
_KNOWN = {
    *("round", "seconds", "requested", "replied", "excluded", "void", "bytes_up", "bytes_down", "up", "down"),
    *("floats_up", "floats_down"),
}


@dataclass(frozen=True)
class Round:
    """One round: its cost, its clients and its metrics."""

    number: int  # counted from 1
    seconds: float
    requested: int
    replied: int
    excluded: dict[str, str]
    void: str  # why the round was discarded; empty: it was not
    bytes_up: int
    bytes_down: int
    up: dict[str, int]
    down: dict[str, int]
    floats_up: int | None  # bytes of the same arrays in float32; None if the run did not count them
    floats_down: int | None
    metrics: dict[str, float]
    broken: tuple[str, ...]  # metrics that were infinite or not a number


def read_rounds(path: Path) -> tuple[list[Round], int]:
    """Read all rounds.

    Returns:
        The rounds in order, the later of two lines for the same round; and the number of lines that cannot be read.
    """
    try:
        lines = path.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return [], 0
    found: dict[int, Round] = {}
    damaged = 0
    for line in filter(str.strip, lines):
        try:
            row = _round(current_row(json.loads(line)))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            damaged += 1
        else:
            found[row.number] = row
    return [found[n] for n in sorted(found)], damaged


def _round(row: dict[str, Any]) -> Round:
    measured = {k: v for k, v in row.items() if k not in _KNOWN and _is_number(v)}
    up, down = _counts(row.get("up")), _counts(row.get("down"))
    return Round(
        number=int(row["round"]) + 1,
        seconds=_finite(row.get("seconds", 0.0)),
        requested=int(row.get("requested", 0)),
        replied=int(row.get("replied", 0)),
        excluded={str(k): str(v) for k, v in (row.get("excluded") or {}).items()},
        void=str(row.get("void") or ""),
        bytes_up=int(row.get("bytes_up", sum(up.values()))),
        bytes_down=int(row.get("bytes_down", sum(down.values()))),
        up=up,
        down=down,
        floats_up=_count(row.get("floats_up")),
        floats_down=_count(row.get("floats_down")),
        metrics={k: float(v) for k, v in measured.items() if math.isfinite(v)},
        broken=tuple(k for k, v in measured.items() if not math.isfinite(v)),
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _finite(value: Any) -> float:
    return float(value) if math.isfinite(value) else 0.0


def _count(value: Any) -> int | None:
    return int(value) if _is_number(value) else None


def _counts(value: Any) -> dict[str, int]:
    return {str(k): int(v) for k, v in (value or {}).items()}


def metric_names(rounds: Sequence[Round]) -> list[str]:
    """Return the metrics of a run, the distance first."""
    names = list(dict.fromkeys(name for r in rounds for name in r.metrics))
    return sorted(names, key=lambda name: name != FD)


def series(rounds: Sequence[Round], metric: str) -> list[tuple[Round, float]]:
    """Return the rounds in which a metric was measured, with its values."""
    return [(r, r.metrics[metric]) for r in rounds if metric in r.metrics]


def best(rounds: Sequence[Round]) -> tuple[Round, float] | None:
    """Return the round with the lowest distance."""
    return min(series(rounds, FD), key=lambda measured: measured[1], default=None)


@dataclass(frozen=True)
class TrafficTotals:
    """Bytes of all clients by direction; per_* is the mean per client and round."""

    up: int
    down: int
    per_up: float
    per_down: float
    floats: int | None  # bytes of the same arrays in float32; None if the run did not count them

    def saving(self) -> float | None:
        """Return bytes in float32 divided by bytes sent, over both directions."""
        sent = self.up + self.down
        return self.floats / sent if sent and self.floats is not None else None


def traffic(rounds: Sequence[Round]) -> TrafficTotals:
    """Return the totals of a run."""
    up, down = sum(r.bytes_up for r in rounds), sum(r.bytes_down for r in rounds)
    sent_up, sent_down = sum(len(r.up) for r in rounds), sum(len(r.down) for r in rounds)  # messages
    floats = [n for r in rounds for n in (r.floats_up, r.floats_down) if n is not None]
    counted = bool(rounds) and len(floats) == 2 * len(rounds)
    return TrafficTotals(up, down, up / max(1, sent_up), down / max(1, sent_down), sum(floats) if counted else None)


def thinned(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` items, evenly spaced, with the first and the last.

    >>> thinned(range(100), 4), thinned("ab", 4)
    ([0, 33, 66, 99], ['a', 'b'])
    """
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]
