"""Fakes as they travel from a server that has the generator to clients that have the critics."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vitrail.methods.gan import Batch
from vitrail.nets.feature_moments import to_float
from vitrail.wire.codecs import Array, bits_for

Form = Literal["uint8", "float16", "float32"]


def pack(x: Tensor, form: Form) -> Array:
    """Fakes, in [-1, 1], as what is sent: with 8 bits a value, as real pictures have, or as floats."""
    return (x + 1).mul(127.5).round().to(torch.uint8).numpy() if form == "uint8" else x.numpy()


def unpack(x: Array, y: Array | None, form: Form, device: str) -> Batch:
    """Fakes and their labels, as they were sent."""
    floats = to_float(x.copy()) if form == "uint8" else torch.from_numpy(x.astype(np.float32))
    return floats.to(device), None if y is None else torch.from_numpy(y.astype(np.int64)).to(device)


def parts(name: str, x: Array, y: Array | None, form: Form, classes: int) -> dict[str, tuple[str, Array]]:
    """A batch as parts of a message: x_name, and y_name where there are labels."""
    said = {f"x_{name}": ("bytes" if form == "uint8" else form, x)}
    return said | ({} if y is None else {f"y_{name}": (bits_for(classes - 1), y)})
