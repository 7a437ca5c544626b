"""Coding of the discriminators in a message: exact (float32, or coded differences), or rounded to 8 or 4 bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrail.utils.errors import Malformed
from vitrail.wire import deltas
from vitrail.wire import quantization as rounded
from vitrail.wire.codecs import Array

Floats = NDArray[np.float32]
BITS = {"int8": 8, "int4": 4}


@dataclass(frozen=True)
class Coding:
    """The coding of discriminators of one architecture."""

    name: str  # the setting d_coding
    sizes: tuple[int, ...]  # number of elements of each tensor of D

    def round(self, vector: Floats) -> Floats:
        """Return D as the receiver decodes it."""
        return rounded.quantize(vector, self.sizes, BITS[self.name]) if self.name in BITS else vector

    def encode(self, rows: Floats, context: Floats | None) -> Array:
        """Encode every step's D, one row per step, given the rows that the receiver already has."""
        if self.name == "plain":
            return rows
        if self.name == "delta":
            coded = deltas.encode(rows, context)
        else:
            coded = rounded.encode(rows, self.sizes, BITS[self.name], context)
        return np.frombuffer(coded, np.uint8)

    def decode(self, sent: Array, steps: int, context: Floats | None) -> Floats:
        """Decode every step's D, one row per step.

        Raises:
            Malformed: If the bytes do not decode to `steps` discriminators of this architecture.
        """
        size = sum(self.sizes)
        if self.name == "delta":
            return deltas.decode(sent.tobytes(), (steps, size), context)
        if self.name in BITS:
            return rounded.decode(sent.tobytes(), steps, self.sizes, BITS[self.name], context)
        if sent.size != steps * size:
            raise Malformed(f"{sent.size:,} numbers of discriminators; expected {steps} times {size:,}")
        return sent.reshape(steps, size)

    def next_context(self, rows: Floats, context: Floats | None) -> Floats | None:
        """Return the decoded rows that the next message is coded against: the last two."""
        if self.name == "plain":
            return None
        return np.array(rows[-2:] if context is None else np.vstack([context, rows])[-2:], np.float32)
