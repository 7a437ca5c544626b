"""The model that a method produces, before it is written to a file. Imports no torch, so that methods stay cheap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.utils.state import State


@dataclass(frozen=True)
class Model:
    """A result of a run that can be written to a model file.

    Args:
        kind: Name of the model kind that reads it, one of `vitrail.models.kinds.MODEL_KINDS`.
        tree: Arrays and plain values from which the kind builds the network.
        unprotected: Private data that the model was trained on without noise, whatever the run's mechanism; such a
            model is not private. Empty: none.

    Examples:
        >>> Model("dcgan", {"shape": [1, 8, 8], "classes": 0}).kind
        'dcgan'
    """

    kind: str
    tree: State
    unprotected: str = ""
