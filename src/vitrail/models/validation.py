"""Check of a model before memory is allocated for it, whatever its kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vitrail.models.kinds import kind_named
from vitrail.models.limits import check_integer, shown
from vitrail.models.model import Model
from vitrail.utils.errors import Malformed, VitrailError

LONGEST_NAME = 1024  # characters of a class name
LARGEST_SIDE = 128  # pixels; the largest value of the setting `size`
UNFIT = (VitrailError, KeyError, TypeError, ValueError, RuntimeError, AttributeError, IndexError, OverflowError)


def check_model(model: Model, names: Sequence[str]) -> int:
    """Check that a model's parts fit together and need no more memory than its file justifies.

    Args:
        model: The model as it was read from a file.
        names: The names of its classes.

    Returns:
        The bytes of the tensors that the model consists of.

    Raises:
        Malformed: If a field is missing, has another type or is out of range; a name is not a short string; a tensor
            does not fit the network; or the network is too large for its coded mask or scores.

    Examples:
        >>> check_model(Model("dcgan", {"shape": [1, 999, 999], "classes": 0}), [])
        Traceback (most recent call last):
        vitrail.utils.errors.Malformed: its model does not fit together (Malformed: shape = [1, 999, 999]; ...
    """
    kind, tree = kind_named(model.kind), model.tree
    try:
        if not isinstance(tree, dict):
            raise Malformed("it has no table of fields")
        _check_shape(tree["shape"])
        _check_names(names)
        if check_integer(tree, "classes") > len(names):
            raise Malformed(f"it has {tree['classes']} classes and {len(names)} class names")
        with torch.device("meta"):
            return kind.check(tree)
    except UNFIT as e:
        raise unfit(e) from e


def unfit(e: Exception) -> Malformed:
    """Return the refusal of a model whose parts do not fit together."""
    return Malformed(f"its model does not fit together ({type(e).__name__}: {e})")


def _check_shape(shape: Any) -> None:
    integers = isinstance(shape, list | tuple) and len(shape) == 3 and all(type(n) is int for n in shape)
    if not integers or not (1 <= shape[0] <= 4 and 1 <= shape[1] == shape[2] <= LARGEST_SIDE):
        raise Malformed(
            f"shape = {shown(shape)}; expected 1 to 4 channels and equal sides of at most {LARGEST_SIDE} pixels"
        )


def _check_names(names: Any) -> None:
    if not isinstance(names, list | tuple):
        raise Malformed(f"its class names are {shown(names)}; expected a list of strings")
    for name in names:
        if not isinstance(name, str) or len(name) > LONGEST_NAME:
            raise Malformed(f"a class name is {shown(name)}; expected a string of at most {LONGEST_NAME} characters")
