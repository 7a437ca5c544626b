"""Aggregation that a few false replies cannot move far, and notes on replies that are far from the others.

Coordinate-wise median and trimmed mean: Yin, Chen, Ramchandran, Bartlett; ICML 2018. Both need every reply until the
round ends, so memory grows with the number of clients in a round; the mean adds replies up as they arrive (replies.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from vitrail.engines.replies import CheckedPart, FixedPointSum
from vitrail.methods.base import NUM_CLIENTS, Method, PartSpec, Sums
from vitrail.utils.errors import VitrailError
from vitrail.wire.codecs import Array

_COLUMNS = 1 << 18  # coordinates that are sorted at the same time
_FAR = 6.0  # median absolute deviations, and ...
_TIMES = 3.0  # ... times the median from which a reply is reported
_FEWEST = 4  # clients among which one can be far from the others


def trimmed_mean(rows: NDArray[np.float64], trim: float) -> NDArray[np.float64]:
    """Mean of each column without its smallest and largest values.

    Args:
        rows: One row per client.
        trim: Share of the rows that is removed at either end, rounded up to whole rows; at least one row remains.

    Returns:
        One number per column; the order of the rows does not change a bit.

    >>> trimmed_mean(np.array([[1.0], [2.0], [3.0], [1e9]]), 0.25).tolist()
    [2.5]
    """
    n = len(rows)
    cut = min(math.ceil(trim * n - 1e-9), (n - 1) // 2)
    found: NDArray[np.float64] = np.sort(rows, axis=0)[cut : n - cut].mean(axis=0)
    return found


class RobustSum:
    """Collects the replies of a round, and gives the median or trimmed mean of each coordinate in place of the mean.

    Where a method divides a sum by the sum of clients' weights, each client's part is divided by its own weight first,
    and every client counts the same. What a method gets is n times the result with n in place of the weights' sum, so
    that its own division gives the median or trimmed mean.
    """

    def __init__(self, declared: Mapping[str, PartSpec], how: str, trim: float) -> None:
        self.declared, self.how, self.trim = declared, how, trim
        self.replies: list[dict[str, Array]] = []

    def add(self, reply: Iterable[CheckedPart]) -> None:
        """Keep one client's checked reply."""
        self.replies.append({t.part.name: t.array for t in reply if self.declared[t.part.name].how == "sum"})

    def sums(self, clients: int) -> Sums:
        """n times the median or trimmed mean of each part that is averaged."""
        weights = {d.over for d in self.declared.values()} - {"", NUM_CLIENTS}
        values: dict[str, NDArray[np.float64]] = {}
        for name, d in self.declared.items():
            if d.how != "sum" or not self.replies:
                continue
            if name in weights:
                values[name] = np.array([float(sum(_weight(r, name) > 0 for r in self.replies))])
                continue
            over = d.over if d.over in weights else ""
            kept = [(r[name], _weight(r, over)) for r in self.replies if _weight(r, over) > 0]
            values[name] = len(kept) * self._columns(kept) if kept else np.zeros(self.replies[0][name].size)
        return Sums(values, clients)

    def _columns(self, kept: list[tuple[Array, float]]) -> NDArray[np.float64]:
        found = []
        for at in range(0, kept[0][0].size, _COLUMNS):
            rows = np.stack([a.reshape(-1)[at : at + _COLUMNS].astype(np.float64) / w for a, w in kept])
            found.append(np.median(rows, axis=0) if self.how == "median" else trimmed_mean(rows, self.trim))
        return np.concatenate([np.empty(0), *found])


def sum_for(method: Method, declared: Mapping[str, PartSpec]) -> FixedPointSum | RobustSum:
    """What aggregates the replies of one round."""
    task = method.task
    if task.aggregation == "mean":
        return FixedPointSum(declared, task.clients)
    return RobustSum(declared, task.aggregation, task.trim)


def check_robust(method: Method, asked: int) -> None:
    """Refuse a robust aggregation where it would be wrong, or no defence.

    Raises:
        VitrailError: Secure aggregation hides single replies; a sum of this method is not a mean over clients; or there
            are fewer than three clients in a round.
    """
    how = f"aggregation={method.task.aggregation}"
    if method.task.secagg_threshold:
        raise VitrailError(f"{how} needs single replies, and secagg_threshold= hides them; use one of both")
    for name, d in method.reply_spec().items():
        averaged = (
            d.over or name in {other.over for other in method.reply_spec().values()} or name.startswith("metric.")
        )
        if d.how == "sum" and not averaged:
            raise VitrailError(
                f"{how}: part {name!r} is used as a sum, not as a mean over clients, with these settings; "
                "available are fedgan (not with privacy=dp-fedavg), dpfedgan without privacy, padpaf, padpafvae, "
                "ditto, fedavg, fedprox, naivemix, fedmix and sdafl"
            )
    if not any(d.over for d in method.reply_spec().values()):
        raise VitrailError(f"{how}: this method averages nothing over clients; use aggregation=mean")
    if asked < 3:
        raise VitrailError(f"{how}: {asked} clients in a round; with fewer than 3 no majority can be right")


class Norms:
    """Norms of the parts that are added up, a few numbers per client, to report who is far from the others."""

    def __init__(self, declared: Mapping[str, PartSpec]) -> None:
        self.declared = declared
        self.found: dict[str, dict[str, float]] = {}

    def add(self, client: str, reply: Iterable[CheckedPart]) -> None:
        """Take one client's checked reply."""
        arrays = {t.part.name: t.array for t in reply}
        for name, a in arrays.items():
            d = self.declared[name]
            if d.how != "sum" or d.bits or name.startswith("metric."):
                continue
            weight = _weight(arrays, d.over if d.over in arrays else "")
            norm = float(np.linalg.norm(a.astype(np.float64, copy=False)))
            if weight > 0 and math.isfinite(norm / weight):
                self.found.setdefault(name, {})[client] = norm / weight

    def far(self) -> dict[str, str]:
        """Clients whose norms are far above the others', and by how much."""
        notes: dict[str, str] = {}
        for name, by_client in self.found.items():
            norms = np.array(list(by_client.values()))
            median = float(np.median(norms))
            spread = 1.4826 * float(np.median(np.abs(norms - median)))
            if len(norms) < _FEWEST or median <= 0:
                continue
            for client, norm in by_client.items():
                if norm > _TIMES * median and norm - median > _FAR * spread:
                    note = f"the norm of {name} is {norm / median:.3g} times the median of all clients"
                    notes[client] = f"{notes[client]}; {note}" if client in notes else note
        return dict(sorted(notes.items()))


def _weight(reply: Mapping[str, Array], name: str) -> float:
    """A client's weight; 1 where parts are not weighted."""
    return float(reply[name].reshape(-1)[0]) if name else 1.0
