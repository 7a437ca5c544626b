"""How D_u travels in PS-FedGAN: exactly, as float32 or as coded changes of it; or rounded, for G too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from vitrail.nets.flat import tensor_sizes
from vitrail.utils.errors import Malformed
from vitrail.wire import deltas, rounded
from vitrail.wire.codecs import Array

Floats = NDArray[np.float32]
BITS = {"int8": 8, "int4": 4}


@dataclass(frozen=True)
class Coding:
    """One way for D's of one architecture to travel."""

    name: str  # as the setting d_coding names it
    sizes: tuple[int, ...]  # of D's tensors

    @classmethod
    def of(cls, name: str, D: nn.Module) -> Coding:
        """The way that is so named, for a network such as this, which may be on the meta device."""
        return cls(name, tensor_sizes(D))

    def as_read(self, vector: Floats) -> Floats:
        """D as whoever reads it has it."""
        return rounded.rounded(vector, self.sizes, BITS[self.name]) if self.name in BITS else vector

    def encode(self, rows: Floats, before: Floats | None) -> Array:
        """Every step's D, a row each and not rounded, under what the reader remembers."""
        if self.name == "plain":
            return rows
        if self.name == "delta":
            coded = deltas.encode(rows, before)
        else:
            coded = rounded.encode(rows, self.sizes, BITS[self.name], before)
        return np.frombuffer(coded, np.uint8)

    def decode(self, sent: Array, steps: int, before: Floats | None) -> Floats:
        """Every step's D, a row each, as it is read."""
        size = sum(self.sizes)
        if self.name == "delta":
            return deltas.decode(sent.tobytes(), (steps, size), before)
        if self.name in BITS:
            return rounded.decode(sent.tobytes(), steps, self.sizes, BITS[self.name], before)
        if sent.size != steps * size:
            raise Malformed(f"{sent.size:,} numbers of D's, expected are {steps} times {size:,}")
        return sent.reshape(steps, size)

    def remembered(self, rows: Floats, before: Floats | None) -> Floats | None:
        """What both sides remember of D's as they were read: what the next ones are coded under."""
        if self.name == "plain":
            return None
        return np.array(rows[-2:] if before is None else np.vstack([before, rows])[-2:], np.float32)
