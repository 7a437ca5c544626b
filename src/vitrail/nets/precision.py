"""Arithmetic of forward passes: float32, or bfloat16 where a processor has instructions for it."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Precision = Literal["auto", "float32", "bfloat16"]
"""A setting; `auto` is replaced by `fastest_precision()` when a run is planned."""


def autocast(x: Tensor, precision: Precision) -> torch.autocast:
    """Return a context in which convolutions and matrix products have this precision, on the device of x.

    Examples:
        >>> x = torch.ones(2, 2)
        >>> with autocast(x, "bfloat16"):
        ...     (x @ x).dtype
        torch.bfloat16
    """
    return torch.autocast(x.device.type, torch.bfloat16, enabled=precision == "bfloat16")


def fastest_precision() -> Precision:
    """Return bfloat16 if this machine computes faster with it: with a GPU, or a CPU with AMX or AVX-512 BF16.

    Examples:
        >>> fastest_precision() in ("float32", "bfloat16")
        True
    """
    if torch.cuda.is_available():
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    capable = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bfloat16" if capable else "float32"
