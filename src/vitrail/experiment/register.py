"""Decorators that add methods, networks, data and metrics of your own; `vitrail.register_method` and so on.

A registered name can be used in settings and on the command line. Packages can register by entry points instead: the
group is named in each function's description.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeVar, cast

T = TypeVar("T")


def _register(where: str, name: str, summary: str) -> Callable[[T], T]:
    module, _, registry = where.partition(":")
    return cast("Callable[[T], T]", getattr(import_module(module), registry).register(name, summary))


def register_method(name: str, summary: str = "") -> Callable[[T], T]:
    """Register a method: a frozen dataclass that derives from `vitrail.BaseMethod`. Group: vitrail.methods.

    Args:
        name: The name in settings, such as `vitrail run NAME`.
        summary: One line for `vitrail list`; default: the first line of the docstring.
    """
    return _register("vitrail.methods.registry:METHODS", name, summary)


def register_generator(name: str, summary: str = "") -> Callable[[T], T]:
    """Register a generator for `generator=NAME`. Group: vitrail.generators.

    The entry is called as `entry(shape, classes, width)` and returns a torch module with an integer attribute `z`, the
    number of noise dimensions, that maps noise (n, z) and labels (n,), or None, to images in [-1, 1].
    """
    return _register("vitrail.nets.generators:GENERATORS", name, summary)


def register_discriminator(name: str, summary: str = "") -> Callable[[T], T]:
    """Register a discriminator for `d_architecture=NAME`. Group: vitrail.discriminators.

    The entry is called as `entry(shape, classes, width)` and returns a torch module that maps images in [-1, 1] and
    labels, or None, to one logit per image.
    """
    return _register("vitrail.nets.discriminators:DISCRIMINATORS", name, summary)


def register_features(name: str, summary: str = "") -> Callable[[T], T]:
    """Register a feature network, a subclass of `vitrail.nets.features.FeatureNetwork`. Group: vitrail.features."""
    return _register("vitrail.nets.features:FEATURES", name, summary)


def register_metric(name: str, summary: str = "") -> Callable[[T], T]:
    """Register a metric for `vitrail evaluate --metrics NAME`. Group: vitrail.metrics."""
    return _register("vitrail.metrics.registry:METRICS", name, summary)


def register_source(name: str, summary: str = "") -> Callable[[T], T]:
    """Register a data source for `data=NAME` or `data=NAME:ARGUMENT`. Group: vitrail.sources.

    The entry is a function that takes a `vitrail.data.ReadRequest` and returns a `vitrail.Dataset`.
    """
    return _register("vitrail.data.sources:SOURCES", name, summary)


def register_partition(name: str, summary: str = "") -> Callable[[T], T]:
    """Register a partition for `partition=NAME`. Group: vitrail.partitions."""
    return _register("vitrail.data.partitions:PARTITIONS", name, summary)


def register_transform(name: str, summary: str = "") -> Callable[[T], T]:
    """Register an image transform for `partition=domains:NAME,...`. Group: vitrail.transforms.

    The entry maps images (n, channels, height, width) in [0, 1] and a NumPy random generator to images.
    """
    return _register("vitrail.data.transforms:TRANSFORMS", name, summary)


def register_model_kind(name: str, summary: str = "") -> Callable[[T], T]:
    """Register a kind of model file, a subclass of `vitrail.models.kinds.ModelKind`. Group: vitrail.model_kinds."""
    return _register("vitrail.models.kinds:MODEL_KINDS", name, summary)


def register_mechanism(name: str, summary: str = "") -> Callable[[T], T]:
    """Register a privacy mechanism, so that owners of nodes can accept it by name. Group: vitrail.mechanisms."""
    return _register("vitrail.privacy.mechanism:MECHANISMS", name, summary)


def register_callback(name: str, summary: str = "") -> Callable[[T], T]:
    """Register a subclass of `vitrail.Callback` for `callbacks=NAME`. Group: vitrail.callbacks."""
    return _register("vitrail.experiment.callbacks:CALLBACKS", name, summary)
