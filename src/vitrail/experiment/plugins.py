"""Classes from outside the package: their names in settings, and whether other processes can import them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from vitrail.experiment.settings import Settings, settings_model
from vitrail.methods.base import BaseMethod
from vitrail.methods.registry import METHODS
from vitrail.utils.errors import VitrailError
from vitrail.utils.registry import PLUGINS, REGISTRIES, Registry, is_importable

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


def name_classes(methods: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Replace classes among the settings of methods, such as generator=MyModule, by their registered names."""
    found = dict(settings)
    if any(isinstance(value, type) for value in settings.values()):
        known = {name: registry for method in methods for name, registry in setting_registries(method)}
        for setting, value in settings.items():
            if isinstance(value, type):
                if setting not in known:
                    accept = f"only {', '.join(known)} accept one" if known else "no setting of this method accepts one"
                    raise VitrailError(f"{setting}: a class was given; {accept}. Give a value")
                found[setting] = known[setting].name_of(value)
    return found


def setting_registries(method: str) -> Iterator[tuple[str, Registry[Any]]]:
    """Yield the settings of a method whose validator is the check of a registry, with this registry."""
    for name, setting in settings_model(method).model_fields.items():
        for validator in setting.metadata:
            registry = getattr(getattr(validator, "func", None), "__self__", None)
            if isinstance(registry, Registry):
                yield name, registry


def _added(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Entries added in this process that the settings name: a description, and the entry."""
    names = {word for v in settings.model_dump().values() if isinstance(v, str) for word in re.split("[:,]", v)}
    for registry in REGISTRIES.values():
        for name in sorted(names):
            if (entry := registry.added(name)) is not None:
                yield f"{registry.kind} {name}", entry


def local_entries(settings: Settings) -> list[str]:
    """Return what the settings name that no other process can import: it is in `__main__` or inside a function."""
    return [what for what, entry in _added(settings) if not is_importable(entry)]


def check_processes(settings: Settings) -> None:
    """Refuse a run over processes that could not import its classes.

    Raises:
        VitrailError: With the classes, and the remedy.
    """
    if settings.engine == "flower":
        known = tuple(f"{module.strip()}." for module in os.environ.get(PLUGINS, "").split(",") if module.strip())
        if unknown := [what for what, entry in _added(settings) if not f"{entry.__module__}.".startswith(known)]:
            raise VitrailError(f"engine=flower: Flower's processes do not know {', '.join(unknown)}; {REMEDY}")
    elif settings.workers != "auto" and settings.workers > 1 and (local := local_entries(settings)):
        raise VitrailError(
            f"workers={settings.workers}: worker processes cannot import {', '.join(local)}, which is defined in a "
            f"script, notebook or function; move it to a module, or omit workers to use one process"
        )
