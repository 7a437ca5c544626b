"""Arithmetic that gives the same bits wherever it runs on one kind of machine, and the device it runs on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch

from vitrail.utils.errors import VitrailError


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Everything inside runs on one torch thread with deterministic kernels, wherever it runs."""
    threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("error")  # use_deterministic_algorithms(True), but that imports a compiler
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(mode)


def device_for(name: str) -> str:
    """The torch device of this name, if it can be used here; `auto` is a GPU where there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.ones(1, device=name).item()
    except (RuntimeError, AssertionError) as e:
        says = str(e).splitlines()[0]
        raise VitrailError(f"device={name}: torch cannot use it here ({says}); set device=auto") from e
    return name
