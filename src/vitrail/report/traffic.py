"""What travelled, in all and against the same arrays as float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from vitrail.report.rounds import Round


@dataclass(frozen=True)
class Traffic:
    """Bytes of all clients, each direction by itself; per_* is for one client in one round."""

    up: int
    down: int
    per_up: float
    per_down: float
    dense_up: int | None  # what the same arrays would cost as float32; None where a run did not count it
    dense_down: int | None

    def saving(self) -> float | None:
        """How many times less travelled, both directions together, than would have as float32."""
        if self.dense_up is None or self.dense_down is None or not self.up + self.down:
            return None
        return (self.dense_up + self.dense_down) / (self.up + self.down)


def traffic(rounds: Sequence[Round]) -> Traffic:
    """The totals of a run."""
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


def sent_so_far(rounds: Sequence[Round]) -> list[int]:
    """Bytes up and down until the end of each round."""
    return list(accumulate(r.bytes_up + r.bytes_down for r in rounds))


def time_so_far(rounds: Sequence[Round]) -> list[float]:
    """Seconds until the end of each round."""
    return list(accumulate(r.seconds for r in rounds))
