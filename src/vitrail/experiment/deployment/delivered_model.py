"""Check of a model that a server delivers to a node: it has the network of the run's specification, and no more."""

from __future__ import annotations

from typing import Any

from vitrail.engines.flower.descriptions import RunSpec
from vitrail.utils.errors import Malformed

MAX_HEADER, PER_TENSOR = 2**20, 256  # bytes that a file may have in addition to its tensors: in all, for each


def check_delivered(spec: RunSpec, raw: bytes) -> None:
    """Refuse bytes that are not a model of a run.

    Args:
        spec: The specification of the run.
        raw: The bytes of a model file.

    Raises:
        Malformed: The bytes are not a model file, its network is not that of the specification, or the file has
            more than that network.
    """
    from vitrail.models.kinds import kind_named
    from vitrail.models.model_file import check_file

    model, size = check_file(raw)
    tree: dict[str, Any] = model.tree
    named = {"shape": list(spec.shape), "classes": len(spec.classes)}
    kind = kind_named(model.kind)
    named |= {name: spec.settings[name] for name in kind.settings if name in spec.settings and name in tree}
    for name, value in named.items():
        found = list(tree[name]) if name == "shape" else tree[name]
        if found != value:
            raise Malformed(f"the model has {name} = {ascii(found)[:60]}, the run has {ascii(value)[:60]}")
    if (n := kind.num_generators(tree)) > spec.clients:
        raise Malformed(f"the model has {n} generators, the run has {spec.clients} clients")
    if len(raw) > size + MAX_HEADER + PER_TENSOR * kind.num_tensors(tree):
        raise Malformed(f"the model file has {len(raw):,} bytes, but its network has {size:,}")
