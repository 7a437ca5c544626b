"""Vitrail: train image generators with federated learning.

Everything listed in `__all__` is the public interface. Names are imported on first use, because torch takes seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitrail.utils.version import __version__

if TYPE_CHECKING:
    from vitrail.data.dataset import Dataset, Images
    from vitrail.experiment.api import compare, evaluate
    from vitrail.experiment.callbacks import Callback
    from vitrail.experiment.register import (
        register_callback,
        register_discriminator,
        register_features,
        register_generator,
        register_mechanism,
        register_method,
        register_metric,
        register_model_kind,
        register_partition,
        register_source,
        register_transform,
    )
    from vitrail.experiment.run_dir import Run
    from vitrail.experiment.train import resume, train
    from vitrail.methods.base import BaseMethod, Method, setting
    from vitrail.methods.messages import Broadcast, PartSpec, Reply, ServerMessage, Sums, Task
    from vitrail.models.model import Model
    from vitrail.models.model_file import Classifier, Generator, load, load_classifier
    from vitrail.utils.rng import Rng

__all__ = [
    "BaseMethod", "Broadcast", "Callback", "Classifier", "Dataset", "Generator", "Images", "Method", "Model",
    "PartSpec", "Reply", "Rng", "Run", "ServerMessage", "Sums", "Task", "__version__", "compare", "evaluate",
    "load", "load_classifier", "register_callback", "register_discriminator", "register_features",
    "register_generator", "register_mechanism", "register_method", "register_metric", "register_model_kind",
    "register_partition", "register_source", "register_transform", "resume", "setting", "train",
]  # fmt: skip

_MODULES = {
    "data.dataset": ("Dataset", "Images"),
    "experiment.api": ("compare", "evaluate"),
    "experiment.callbacks": ("Callback",),
    "experiment.register": tuple(name for name in __all__ if name.startswith("register_")),
    "experiment.run_dir": ("Run",),
    "experiment.train": ("resume", "train"),
    "methods.base": ("BaseMethod", "Method", "setting"),
    "methods.messages": ("Broadcast", "PartSpec", "Reply", "ServerMessage", "Sums", "Task"),
    "models.model": ("Model",),
    "models.model_file": ("Classifier", "Generator", "load", "load_classifier"),
    "utils.rng": ("Rng",),
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"vitrail.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
