"""Sums over the replies of a round in 64-bit fixed point: the order of replies changes no bit of the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from vitrail.engines.replies import CheckedPart
from vitrail.methods.base import PartSpec, Sums, fixed_point_scale
from vitrail.wire.bit_counts import BitCounts
from vitrail.wire.codecs import Array


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
