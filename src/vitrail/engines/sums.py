"""Sums, medians and trimmed means over the replies of a round, and notes on outliers among them.

Sums are added in 64-bit fixed point as replies arrive, so their order changes no bit. Coordinate-wise median and
trimmed mean (Yin, Chen, Ramchandran, Bartlett, ICML 2018) need every reply until the round ends, so memory grows with
the number of clients in a round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from vitrail.engines.replies import CheckedPart
from vitrail.methods.base import Method, fixed_point_scale
from vitrail.methods.messages import NUM_CLIENTS, PartSpec, Sums
from vitrail.utils.errors import VitrailError
from vitrail.wire.bit_counts import BitCounts
from vitrail.wire.codecs import Array

_COLUMNS = 1 << 18  # coordinates that are sorted at the same time
_MAX_DEVIATIONS = 6.0  # a reply is reported if its norm is this many median absolute deviations above the median ...
_MAX_RATIO = 3.0  # ... and this many times the median
_MIN_CLIENTS = 4  # no outliers are reported among fewer


class FixedPointSum:
    """Adds up `sum` parts as they arrive, with the memory of one reply. Parts of bits are counted bit by bit.

    Args:
        declared: The method's `reply_spec`.
        clients: Largest number of replies; it determines the fixed-point scale.
    """

    def __init__(self, declared: Mapping[str, PartSpec], clients: int) -> None:
        self.declared = declared
        self.scale = {name: fixed_point_scale(d.limit, clients) for name, d in declared.items()}
        self.total: dict[str, NDArray[np.int64]] = {}
        self.counts: dict[str, BitCounts] = {}

    def add(self, reply: Iterable[CheckedPart]) -> None:
        """Add one client's checked reply; if this raises, no part of the reply has been added."""
        bits: dict[str, Array] = {}
        integers: dict[str, NDArray[np.int64]] = {}
        for name, a in ((checked.part.name, checked.array) for checked in reply):
            if self.declared[name].how != "sum":
                continue
            if self.declared[name].bits:
                bits[name] = np.packbits(a)
                self.counts.setdefault(name, BitCounts(a.size))
            else:
                rounded = np.rint(a * np.float64(self.scale[name])) if a.dtype.kind == "f" else a
                integers[name] = rounded.astype(np.int64)
        for name, packed in bits.items():
            self.counts[name].add(packed)
        for name, added in integers.items():  # in place, of equal shapes: this cannot fail
            if name in self.total:
                self.total[name] += added
            else:
                self.total[name] = added

    def sums(self, clients: int) -> Sums:
        """Return all sums as float64.

        Args:
            clients: Number of replies that were added.
        """
        values = {name: counts.totals().astype(np.float64) for name, counts in self.counts.items()}
        for name, total in self.total.items():
            scale = self.scale[name] if self.declared[name].codec.startswith("float") else 1.0
            values[name] = total / np.float64(scale)
        return Sums(values, clients)


def trimmed_mean(rows: NDArray[np.float64], trim: float) -> NDArray[np.float64]:
    """Mean of each column without its smallest and largest values.

    Args:
        rows: One row per client.
        trim: Share of the rows that is removed at either end, rounded up to full rows; at least one row remains.

    Returns:
        One number per column; it does not depend on the order of the rows.

    Examples:
        >>> trimmed_mean(np.array([[1.0], [2.0], [3.0], [1e9]]), 0.25).tolist()
        [2.5]
    """
    n = len(rows)
    cut = min(math.ceil(trim * n - 1e-9), (n - 1) // 2)
    return np.sort(rows, axis=0)[cut : n - cut].mean(axis=0)


class RobustSum:
    """Collects the replies of a round and returns the median or trimmed mean of each coordinate in place of the mean.

    Where a method divides a sum by the sum of clients' weights, each client's part is divided by its own weight first,
    and all clients count equally. The method gets n times the result, and n as the sum of weights, so that its own
    division gives the median or trimmed mean.

    Args:
        declared: The method's `reply_spec`.
        how: "median" or "trimmed_mean".
        trim: Share that a trimmed mean removes at either end.
    """

    def __init__(self, declared: Mapping[str, PartSpec], how: str, trim: float) -> None:
        self.declared, self.how, self.trim = declared, how, trim
        self.replies: list[dict[str, Array]] = []

    def add(self, reply: Iterable[CheckedPart]) -> None:
        """Add one client's checked reply."""
        self.replies.append({p.part.name: p.array for p in reply if self.declared[p.part.name].how == "sum"})

    def sums(self, clients: int) -> Sums:
        """Return n times the median or trimmed mean of each part that is averaged."""
        weights = {d.over for d in self.declared.values()} - {"", NUM_CLIENTS}
        values: dict[str, NDArray[np.float64]] = {}
        for name, d in self.declared.items():
            if d.how != "sum" or not self.replies:
                continue
            if name in weights:
                values[name] = np.array([float(sum(_weight(r, name) > 0 for r in self.replies))])
                continue
            over = d.over if d.over in weights else ""
            weighted = [(r[name], _weight(r, over)) for r in self.replies if _weight(r, over) > 0]
            values[name] = len(weighted) * self._center(weighted) if weighted else np.zeros(self.replies[0][name].size)
        return Sums(values, clients)

    def _center(self, weighted: list[tuple[Array, float]]) -> NDArray[np.float64]:
        """The median or trimmed mean of each coordinate."""
        columns = []
        for at in range(0, weighted[0][0].size, _COLUMNS):
            rows = np.stack([a.reshape(-1)[at : at + _COLUMNS].astype(np.float64) / w for a, w in weighted])
            columns.append(np.median(rows, axis=0) if self.how == "median" else trimmed_mean(rows, self.trim))
        return np.concatenate([np.empty(0), *columns])


def sum_for(method: Method, declared: Mapping[str, PartSpec]) -> FixedPointSum | RobustSum:
    """Return an empty aggregate for the replies of one round."""
    task = method.task
    if task.aggregation == "mean":
        return FixedPointSum(declared, task.clients)
    return RobustSum(declared, task.aggregation, task.trim)


def check_robust(method: Method, per_round: int) -> None:
    """Refuse a robust aggregation where it would be wrong or no protection.

    Args:
        method: The method, whose task names the aggregation.
        per_round: Number of clients per round.

    Raises:
        VitrailError: Secure aggregation hides single replies; a sum of this method is not a mean over clients; or there
            are fewer than three clients per round.
    """
    how, declared = f"aggregation={method.task.aggregation}", method.reply_spec()
    if method.task.secagg_threshold:
        raise VitrailError(f"{how} needs single replies, and secagg_threshold= hides them; use only one of them")
    divisors = {d.over for d in declared.values()}
    for name, d in declared.items():
        averaged = d.over or name in divisors or name.startswith("metric.")
        if d.how == "sum" and not averaged:
            raise VitrailError(
                f"{how}: with these settings, part {name!r} is used as a sum, not as a mean over clients; "
                "use aggregation=mean, or a method and settings that average all parts over clients"
            )
    if not any(divisors):
        raise VitrailError(f"{how}: this method averages no part over clients; use aggregation=mean")
    if per_round < 3:
        raise VitrailError(f"{how}: {per_round} clients per round; at least 3 are needed for a majority")


class ReplyNorms:
    """Norms of the summed parts of each client's reply, to report outliers."""

    def __init__(self, declared: Mapping[str, PartSpec]) -> None:
        self.declared = declared
        self.norms: dict[str, dict[str, float]] = {}

    def add(self, client: str, reply: Iterable[CheckedPart]) -> None:
        """Add one client's checked reply."""
        arrays = {p.part.name: p.array for p in reply}
        for name, a in arrays.items():
            d = self.declared[name]
            if d.how != "sum" or d.bits or name.startswith("metric."):
                continue
            weight = _weight(arrays, d.over if d.over in arrays else "")
            norm = float(np.linalg.norm(a.astype(np.float64, copy=False)))
            if weight > 0 and math.isfinite(norm / weight):
                self.norms.setdefault(name, {})[client] = norm / weight

    def outliers(self) -> dict[str, str]:
        """Return the clients whose norms are far above the median, with the ratio."""
        notes: dict[str, str] = {}
        for name, by_client in self.norms.items():
            norms = np.array(list(by_client.values()))
            median = float(np.median(norms))
            spread = 1.4826 * float(np.median(np.abs(norms - median)))
            if len(norms) < _MIN_CLIENTS or median <= 0:
                continue
            for client, norm in by_client.items():
                if norm > _MAX_RATIO * median and norm - median > _MAX_DEVIATIONS * spread:
                    note = f"the norm of {name} is {norm / median:.3g} times the median of all clients"
                    notes[client] = f"{notes[client]}; {note}" if client in notes else note
        return dict(sorted(notes.items()))


def _weight(reply: Mapping[str, Array], name: str) -> float:
    """A client's weight; 1 where parts are not weighted."""
    return float(reply[name].reshape(-1)[0]) if name else 1.0
