"""Check of a model that a server delivers to a node: it is one of the run that the terms describe, and no larger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitrail.utils.errors import Malformed

if TYPE_CHECKING:
    from vitrail.engines.flower.run_spec import RunSpec

HEADER, PER_TENSOR = 2**20, 256  # bytes that a file may have beside its tensors, in all and for each of them
NETWORK = ("generator", "width", "latent_dim", "style_depth", "label_maps")  # settings that determine its size


def check_delivered(terms: RunSpec, raw: bytes) -> None:
    """Refuse bytes that are not a model of a run.

    Args:
        terms: The terms of the run.
        raw: The bytes of a model file.

    Raises:
        Malformed: The bytes are not a model file, its network is not the one that the terms name, or the file has
            more than that network.
    """
    from vitrail.models.model_file import check_file

    model, size = check_file(raw)
    tree: dict[str, Any] = model.tree
    named = {"shape": list(terms.shape), "classes": len(terms.classes)}
    named |= {name: terms.settings[name] for name in NETWORK if name in terms.settings and name in tree}
    for name, value in named.items():
        found = list(tree[name]) if name == "shape" else tree[name]
        if found != value:
            raise Malformed(f"the model has {name} = {ascii(found)[:60]}, the run {ascii(value)[:60]}")
    parts = tree["parts"] if model.kind == "mixture" else []
    if len(parts) > terms.clients:
        raise Malformed(f"the model has {len(parts)} generators, the run {terms.clients} clients")
    tensors = sum(len(tree[name]) for name in ("weights", "content", "style") if name in tree) + sum(map(len, parts))
    if len(raw) > size + HEADER + PER_TENSOR * tensors:
        raise Malformed(f"the model file has {len(raw):,} bytes, of which its network takes {size:,}")
