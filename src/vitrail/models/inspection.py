"""Content of a model file: its network, its parts in bytes, and the facts stored about it (`vitrail show`)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.markup import escape
from rich.table import Table

from vitrail.models.generator import Generator
from vitrail.models.kinds import MODEL_KINDS
from vitrail.models.model_file import MODEL, load_any
from vitrail.utils import state as store
from vitrail.utils.console import Console, print_table
from vitrail.utils.errors import Malformed, printable
from vitrail.utils.quantities import size

LABELS = {
    "vitrail": "vitrail version",
    "data": "trained on",
    "seed": "seed of the run",
    "held_out": "test fraction",
    "split": "train/test split",
    "ruler": "feature network of the rounds",
}


def inspect_model(path: str | Path) -> dict[str, Any]:
    """Describe a model file by plain values.

    Args:
        path: A model file or a run's folder.

    Returns:
        The file's name, bytes, kind, network, parts and `about`, all of which JSON can represent.

    Raises:
        VitrailError: If there is no such file, or it is not a model that can be loaded.
    """
    path = Path(path)
    path = path / MODEL if path.is_dir() else path
    net = load_any(path)
    tree = store.load(path)
    name, model = tree["kind"], tree["model"]
    kind = MODEL_KINDS[name]
    if not isinstance(net.about, dict):
        raise Malformed(f"{path}: its field `about` is {net.about!r}; expected a table")
    parameters = sum(p.numel() for p in net.net.parameters())
    arrays = (*_arrays(model), *_arrays(tree["about"], "about"))
    parts = [_part(part, array, parameters if part == kind.coded_part else None) for part, array in arrays]
    total = path.stat().st_size
    header = total - sum(p["bytes"] for p in parts)
    mask = kind.mask(net.net)
    return {
        "file": str(path),
        "bytes": total,
        "float32_bytes": 4 * parameters,
        "kind": name,
        "meaning": kind.meaning,
        "architecture": str(model.get("generator", name)),
        "z": net.z if isinstance(net, Generator) else 0,
        "shape": list(net.shape),
        "classes": list(map(str, net.classes)),
        "parameters": parameters,
        "settings": {k: plain(v) for k, v in model.items() if v is None or isinstance(v, str | int | float)},
        **({"mask": mask} if mask else {}),
        "batch_norm": kind.batch_norm(model),
        "parts": [*parts, {"name": "header", "type": "json", "bytes": header}],
        "about": plain(net.about),
    }


def plain(node: Any) -> Any:
    """Return a tree of values that JSON can represent; an array becomes its type and shape.

    Examples:
        >>> plain({"loss": float("nan"), "pixels": np.zeros((2, 3))})
        {'loss': 'nan', 'pixels': 'float64 [2, 3]'}
    """
    if isinstance(node, dict):
        return {str(k): plain(v) for k, v in node.items()}
    if isinstance(node, list | tuple):
        return [plain(v) for v in node]
    if isinstance(node, torch.Tensor | np.ndarray | bytes):
        return "{} {}".format(*_described(node)[:2])
    return str(node) if isinstance(node, float) and not math.isfinite(node) else node


def _arrays(node: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every array of a tree with its path."""
    if isinstance(node, dict | list | tuple):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _arrays(value, f"{name}/{key}" if name else str(key))
    elif isinstance(node, torch.Tensor | np.ndarray | bytes):
        yield name, node


def _part(name: str, array: Any, coded: int | None) -> dict[str, Any]:
    """Describe an array: its bytes, and the bytes of its numbers (or of those that it codes) as float32."""
    type_, shape, stored = _described(array)
    numbers = math.prod(shape) if coded is None else coded
    return {"name": name, "type": type_, "shape": shape, "bytes": stored, "float32_bytes": 4 * numbers}


def _described(array: torch.Tensor | np.ndarray[Any, Any] | bytes) -> tuple[str, list[int], int]:
    """Return type, shape and bytes of an array."""
    if isinstance(array, bytes):
        return "uint8", [len(array)], len(array)
    return str(array.dtype).removeprefix("torch."), list(array.shape), array.nbytes


def show_model(found: dict[str, Any], console: Console) -> None:
    """Print what `inspect_model` returned as tables."""
    console.print(printable(found["file"], None), markup=False, soft_wrap=True)
    print_table(console, _network(found).items(), title="\nnetwork")
    parts = Table(title="\nparts", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in ("part", "type", "bytes", "as float32"):
        parts.add_column(name, justify="left" if name in ("part", "type") else "right", overflow="fold")
    total = {"name": "total", "type": "", "bytes": found["bytes"], "float32_bytes": found["float32_bytes"]}
    for p in (*found["parts"], total):
        type_ = f"{p['type']} {' x '.join(map(str, p.get('shape', [])))}"
        floats = f"{p['float32_bytes']:,}" if "float32_bytes" in p else ""
        parts.add_row(escape(printable(p["name"], None)), type_, f"{p['bytes']:,}", floats)
    console.print(parts)
    about = {"privacy": "not stated"} | found["about"]
    rows = [(LABELS.get(name, name.replace("_", " ")), _text(name, value)) for name, value in about.items()]
    print_table(console, rows, title="\nabout")


def _network(found: dict[str, Any]) -> dict[str, str]:
    """Return the rows on a model's network."""
    few = ", ".join(found["classes"][:20]) + (", ..." if len(found["classes"]) > 20 else "")
    own = {k: v for k, v in found["settings"].items() if k not in ("generator", "classes", "z", "seed")}
    rows = {
        "kind": f"{found['kind']}: {found['meaning']}",
        "architecture": found["architecture"] + "".join(f", {k} {v}" for k, v in own.items()),
        "images": f"{' x '.join(map(str, found['shape']))} (channels x height x width)",
        **({"noise": f"{found['z']} numbers per image"} if found["z"] else {}),
        "classes": f"{len(found['classes'])}: {few}" if few else "none: trained without labels",
        "weights": f"{found['parameters']:,}",
    }
    if mask := found.get("mask"):
        rows["seed of signs"] = str(found["settings"].get("seed"))
        share = f"{100 * mask['share']:.1f}% of {mask['elements']:,} elements"
        rows["ones in mask"] = share if "ones" in mask else f"{share} (expected value of a draw)"
    return rows | {"BatchNorm": f"statistics {found['batch_norm']}"}


def _text(name: str, value: Any) -> str:
    """Return a value of `about` as text."""
    if name in ("bytes_up", "bytes_down") and isinstance(value, int):
        return f"{value:,} ({size(value)}) in total"
    return "; ".join(map(str, value)) if isinstance(value, list) else str(value)
