"""Counting ones at every position of many masks, as fast as their bytes can be read.

Counts are kept as bit planes: plane i holds bit i of every position's count, 64 positions a word. A full adder of three
words is five operations, and a carry goes up only when two are waiting, so a mask costs about five operations a
word however many there are (Harley and Seal's counter; Warren, "Hacker's Delight", section 5-1). Memory is one
mask's size times the bits of the largest count.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitrail.wire.codecs import Array

Words = NDArray[np.uint64]


class BitCounts:
    """How many of the masks that were added have each position set.

    >>> counts = BitCounts(10)
    >>> for mask in (0b1010000000, 0b1000000000, 0b1000000001):
    ...     counts.add(np.array([mask >> 2, mask << 6 & 255], np.uint8))
    >>> counts.totals().tolist()
    [3, 0, 1, 0, 0, 0, 0, 0, 0, 1]
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.planes: list[Words] = []
        self.waiting: list[Words | None] = []  # by plane: a word of this weight, to be added with the next

    def add(self, packed: Array) -> None:
        """Add a mask of packed bits, the first position highest, as np.packbits makes it."""
        words = np.zeros(-(-self.size // 64), np.uint64)
        words.view(np.uint8)[: len(packed)] = packed
        planes: list[Words] = []  # those that change; put in place once nothing can fail any more
        for plane, other in zip(self.planes, self.waiting, strict=True):
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
            self.waiting.append(None)
        self.planes[:i], self.waiting[:i], self.waiting[i] = planes, [None] * i, words

    def totals(self) -> NDArray[np.int32]:
        """The counts."""
        total = np.zeros(self.size, np.int32)
        for plane, waiting in zip(reversed(self.planes), reversed(self.waiting), strict=True):
            total <<= 1
            for words in (plane, waiting):
                if words is not None:
                    total += np.unpackbits(words.view(np.uint8), count=self.size)
        return total
