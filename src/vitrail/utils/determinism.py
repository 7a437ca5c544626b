"""Deterministic arithmetic on one kind of machine, and the choice of the torch device."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

from vitrail.utils.errors import VitrailError


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run the block on one torch thread with deterministic kernels, so that results are equal bit by bit."""
    threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    kernels: Any = torch.utils.deterministic
    fill = kernels.fill_uninitialized_memory
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("error")  # as use_deterministic_algorithms(True), which imports a compiler
    kernels.fill_uninitialized_memory = False  # it takes a tenth of the time; every kernel writes its output
    try:
        yield
    finally:
        kernels.fill_uninitialized_memory = fill
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(mode)


def device_for(name: str) -> str:
    """Return the torch device for a `device=` setting.

    Args:
        name: A torch device such as `cpu` or `cuda:1`, or `auto` for a GPU if there is one.

    Raises:
        VitrailError: If torch cannot use the device on this machine.

    Examples:
        >>> device_for("cpu")
        'cpu'
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.ones(1, device=name).item()
    except (RuntimeError, AssertionError) as e:
        problem = str(e).splitlines()[0]
        raise VitrailError(f"device={name}: torch cannot use it on this machine ({problem}); set device=auto") from e
    return name
