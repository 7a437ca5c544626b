"""Vitrail: train one image generator over data that may not be pooled."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from vitrail.artifact import Generator, load
    from vitrail.run import Run, resume, train

__all__ = ["Generator", "Run", "__version__", "load", "resume", "train"]

_WHERE = {"Generator": "artifact", "load": "artifact", "Run": "run", "resume": "run", "train": "run"}


def __getattr__(name: str) -> object:
    """Import what is asked for when it is asked for: torch takes seconds."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"vitrail.{_WHERE[name]}"), name)
