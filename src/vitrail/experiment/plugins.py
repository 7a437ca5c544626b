"""Classes from outside the package: their names in settings, and whether other processes can import them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from typing import Any

from vitrail.experiment.settings import Settings
from vitrail.methods.base import BaseMethod
from vitrail.methods.registry import METHODS
from vitrail.utils.errors import VitrailError
from vitrail.utils.registry import PLUGINS, REGISTRIES, is_importable

REMEDY = (
    "move it to a module, register it there with a decorator such as @vitrail.register_method(NAME), and list that "
    f"module in the environment variable {PLUGINS}"
)


def describe_method(method: str | type[BaseMethod] | BaseMethod) -> tuple[str, dict[str, Any]]:
    """Return a method's name, and the settings of an object; a class that is not registered is registered.

    Raises:
        VitrailError: If it is neither text, nor a subclass of BaseMethod, nor an object of one.
    """
    if isinstance(method, str):
        return method, {}
    if isinstance(method, type) and issubclass(method, BaseMethod):
        return METHODS.name_of(method), {}
    if isinstance(method, BaseMethod):
        own = {f.name: getattr(method, f.name) for f in fields(method) if f.name != "task"}
        return METHODS.name_of(type(method)), own
    raise VitrailError(
        f"{method!r} is not a method; give a name of `vitrail list`, a settings file, or a class that derives from "
        "vitrail.BaseMethod"
    )


def name_classes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Replace classes among settings, such as generator=MyModule, by their registered names."""
    found = dict(settings)
    known = {"generator": "generators", "d_architecture": "discriminators", "features": "features"}
    for setting, value in settings.items():
        if isinstance(value, type):
            if setting not in known:
                raise VitrailError(f"{setting}: a class was given; only {', '.join(known)} accept one. Give a value")
            import_module(f"vitrail.nets.{known[setting]}")  # creates the registry
            found[setting] = REGISTRIES[f"vitrail.{known[setting]}"].name_of(value)
    return found


def _added(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Entries added in this process that the settings name: a description, and the entry."""
    names = {word for v in settings.model_dump().values() if isinstance(v, str) for word in re.split("[:,]", v)}
    for registry in REGISTRIES.values():
        for name in sorted(names):
            if (entry := registry.added(name)) is not None:
                yield f"{registry.kind} {name}", entry


def _in_modules(entry: Any, modules: Sequence[str]) -> bool:
    """Return whether a class is defined in one of the modules or packages."""
    return any(f"{entry.__module__}.".startswith(f"{module}.") for module in modules)


def local_entries(settings: Settings) -> list[str]:
    """Return what the settings name that no other process can import: it is in `__main__` or inside a function."""
    return [what for what, entry in _added(settings) if not is_importable(entry)]


def check_processes(settings: Settings) -> None:
    """Refuse a run over processes that could not import its classes.

    Raises:
        VitrailError: With the classes, and the remedy.
    """
    if settings.engine == "flower":
        known = tuple(module.strip() for module in os.environ.get(PLUGINS, "").split(",") if module.strip())
        if unknown := [what for what, entry in _added(settings) if not _in_modules(entry, known)]:
            raise VitrailError(f"engine=flower: Flower's processes do not know {', '.join(unknown)}; {REMEDY}")
    elif settings.workers != "auto" and settings.workers > 1 and (local := local_entries(settings)):
        raise VitrailError(
            f"workers={settings.workers}: worker processes cannot import {', '.join(local)}, which is defined in a "
            f"script, notebook or function; move it to a module, or omit workers to use one process"
        )
