"""The methods, by name: one line each. Nothing is imported until a method is asked for."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Any

from vitrail.errors import VitrailError

METHODS: dict[str, tuple[str, str]] = {
    "prism": (
        "vitrail.methods.prism:Prism",
        "one frozen random generator, a learned binary mask; bits travel",
    ),
    "fedgan": (
        "vitrail.methods.fedgan:FedGan",
        "federated averaging of a conditional GAN, four synchronisations",
    ),
}


def method_class(name: str) -> type[Any]:
    """The class of a registered method."""
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(METHODS)}"
        raise VitrailError(f"method={name!r} is not known; {hint}")
    module, _, cls = METHODS[name][0].partition(":")
    found: type[Any] = getattr(import_module(module), cls)
    return found
