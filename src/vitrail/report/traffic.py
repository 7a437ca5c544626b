"""Bytes sent in a run, and what the same arrays would take in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from vitrail.report.rounds import Round


@dataclass(frozen=True)
class Traffic:
    """Bytes of all clients by direction; per_* is the mean per client and round."""

    up: int
    down: int
    per_up: float
    per_down: float
    dense_up: int | None  # bytes of the same arrays in float32; None if the run did not count them
    dense_down: int | None

    def saving(self) -> float | None:
        """Return bytes in float32 divided by bytes sent, over both directions."""
        if self.dense_up is None or self.dense_down is None or not self.up + self.down:
            return None
        return (self.dense_up + self.dense_down) / (self.up + self.down)


def traffic(rounds: Sequence[Round]) -> Traffic:
    """Return the totals of a run."""
    up, down = sum(r.bytes_up for r in rounds), sum(r.bytes_down for r in rounds)
    counted = bool(rounds) and all(r.floats_up is not None and r.floats_down is not None for r in rounds)
    return Traffic(
        up=up,
        down=down,
        per_up=up / max(1, sum(len(r.up) for r in rounds)),
        per_down=down / max(1, sum(len(r.down) for r in rounds)),
        dense_up=sum(r.floats_up or 0 for r in rounds) if counted else None,
        dense_down=sum(r.floats_down or 0 for r in rounds) if counted else None,
    )


def cumulative_bytes(rounds: Sequence[Round]) -> list[int]:
    """Return the bytes up and down until the end of each round."""
    return list(accumulate(r.bytes_up + r.bytes_down for r in rounds))


def cumulative_seconds(rounds: Sequence[Round]) -> list[float]:
    """Return the seconds until the end of each round."""
    return list(accumulate(r.seconds for r in rounds))
