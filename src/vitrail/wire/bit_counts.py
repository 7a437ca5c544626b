"""Sums of many binary masks, position by position (Harley-Seal counter; Warren, "Hacker's Delight", section 5-1).

Counts are stored as bit planes: plane i has bit i of all counts, 64 positions per word. A full adder of three words
takes five operations, and a carry propagates only when two are pending, so a mask costs about five operations per word.
The memory is the size of one mask times the bits of the largest count.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitrail.wire.codecs import Array

Words = NDArray[np.uint64]


class BitCounts:
    """The number of added masks that have a one, for each position.

    Args:
        size: Number of positions of a mask.

    Examples:
        >>> counts = BitCounts(10)
        >>> for mask in (0b1010000000, 0b1000000000, 0b1000000001):
        ...     counts.add(np.array([mask >> 2, mask << 6 & 255], np.uint8))
        >>> counts.totals().tolist()
        [3, 0, 1, 0, 0, 0, 0, 0, 0, 1]
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.planes: list[Words] = []
        self.pending: list[Words | None] = []  # per plane: pending words of this weight, added with the next

    def add(self, packed: Array) -> None:
        """Add a mask of packed bits as np.packbits returns them: the first position is the highest bit."""
        words = np.zeros(-(-self.size // 64), np.uint64)
        words.view(np.uint8)[: len(packed)] = packed
        planes: list[Words] = []  # assigned at the end, so that an exception leaves the counts intact
        for plane, other in zip(self.planes, self.pending, strict=True):
            if other is None:
                break
            either = plane ^ other  # a full adder: plane + other + words
            planes.append(either ^ words)
            either &= words
            words = plane & other
            words |= either
        i = len(planes)
        if i == len(self.planes):
            self.planes.append(np.zeros_like(words))
            self.pending.append(None)
        self.planes[:i], self.pending[:i], self.pending[i] = planes, [None] * i, words

    def totals(self) -> NDArray[np.int32]:
        """Return the counts."""
        total = np.zeros(self.size, np.int32)
        for plane, pending in zip(reversed(self.planes), reversed(self.pending), strict=True):
            total <<= 1
            for words in (plane, pending):
                if words is not None:
                    total += np.unpackbits(words.view(np.uint8), count=self.size)
        return total
