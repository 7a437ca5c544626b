"""Vitrail: train one image generator over data that may not be pooled."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from vitrail.experiment.runner import Run, resume, train
    from vitrail.models.model_file import Classifier, Generator, load, load_classifier

__all__ = ["Classifier", "Generator", "Run", "__version__", "load", "load_classifier", "resume", "train"]

_WHERE = dict.fromkeys(("Classifier", "Generator", "load", "load_classifier"), "models.model_file")
_WHERE |= dict.fromkeys(("Run", "resume", "train"), "experiment.runner")


def __getattr__(name: str) -> object:
    """Import what is asked for when it is asked for: torch takes seconds."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"vitrail.{_WHERE[name]}"), name)
