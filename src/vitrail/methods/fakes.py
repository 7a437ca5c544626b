"""Fakes in messages, from a server that has the generator to clients that have discriminators (mdgan, gswgan)."""

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
    """Return fakes in [-1, 1] in the form in which they are sent: 8 bits per value, or floats.

    Args:
        x: Generated images, in [-1, 1].
        form: Number format.

    Examples:
        >>> pack(torch.tensor([-1.0, 0.0, 1.0]), "uint8").tolist()
        [0, 128, 255]
    """
    return (x + 1).mul(127.5).round().to(torch.uint8).numpy() if form == "uint8" else x.numpy()


def unpack(x: Array, y: Array | None, form: Form, device: str) -> Batch:
    """Return received fakes as floats in [-1, 1], and their labels."""
    floats = to_float(x.copy()) if form == "uint8" else torch.from_numpy(x.astype(np.float32))
    return floats.to(device), None if y is None else torch.from_numpy(y.astype(np.int64)).to(device)


def message_parts(name: str, x: Array, y: Array | None, form: Form, classes: int) -> dict[str, tuple[str, Array]]:
    """Return a batch as parts of a message: x_{name} and, with labels, y_{name}."""
    images = {f"x_{name}": ("bytes" if form == "uint8" else form, x)}
    return images | ({} if y is None else {f"y_{name}": (bits_for(classes - 1), y)})
