"""What is in a model file: its network, its parts in bytes, and all it says of itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vitrail.models.model_file import Classifier, Generator, kind_of, load, load_classifier
from vitrail.nets.masked import Ensemble
from vitrail.report.quantities import size
from vitrail.utils import state as store
from vitrail.utils.errors import Malformed, printable

MEANING = {
    "masked": "frozen random signs by a seed, and one bit a weight that keeps it or not",
    "ensemble": "frozen random signs by a seed, and a probability a weight: a new mask for every batch",
    "dcgan": "ordinary weights",
    "classifier": "ordinary weights; it names pictures and makes none",
    "mixture": "several generators of ordinary weights; noise says which of those that know a label is used",
    "padpaf": "ordinary weights; content that all clients share, with one client's style or with none",
}
CODED = {("masked", "mask"), ("ensemble", "scores")}  # parts that stand for a number a weight
STORED = "stored with the weights"
NONE = "not there: it has GroupNorm"
LABELS = {
    "vitrail": "made with vitrail",
    "data": "trained on",
    "seed": "seed of the run",
    "held_out": "share held out",
    "split": "held out by",
}
RECOMPUTED = "not stored: computed when loading, from noise that a seed gives"


def inspect_model(path: str | Path) -> dict[str, Any]:
    """All that is known of a model file, or of the model in a run's folder, as plain values."""
    path = Path(path)
    path = path / "model.safetensors" if path.is_dir() else path
    net = load_classifier(path) if kind_of(path) == "classifier" else load(path)  # refuses what is no model
    tree = store.load(path)
    kind, model = tree["kind"], tree["model"]
    if not isinstance(net.about, dict):
        raise Malformed(f"{path}: what it says of itself is {net.about!r}, not a table")
    parameters = sum(p.numel() for p in net.net.parameters())
    arrays = (*_arrays(model), *_arrays(tree["about"], "about"))
    parts = [_part(name, array, kind, parameters) for name, array in arrays]
    whole = path.stat().st_size
    header = whole - sum(p["bytes"] for p in parts)
    return {
        "file": str(path),
        "bytes": whole,
        "float32_bytes": 4 * parameters,
        "kind": kind,
        "meaning": MEANING.get(kind, ""),
        "architecture": str(model.get("generator", kind)),
        "z": net.z if isinstance(net, Generator) else 0,
        "shape": list(net.shape),
        "classes": list(map(str, net.classes)),
        "parameters": parameters,
        "settings": {k: plain(v) for k, v in model.items() if v is None or isinstance(v, str | int | float)},
        **_mask(kind, net),
        "batch_norm": RECOMPUTED
        if kind in ("masked", "ensemble", "padpaf")
        else NONE
        if model.get("norm") == "group"
        else STORED,
        "parts": [*parts, {"name": "header", "type": "json", "bytes": header}],
        "about": plain(net.about),
    }


def plain(node: Any) -> Any:
    """A tree as JSON can hold it: of an array its type and shape."""
    if isinstance(node, dict):
        return {str(k): plain(v) for k, v in node.items()}
    if isinstance(node, list | tuple):
        return [plain(v) for v in node]
    if isinstance(node, torch.Tensor | np.ndarray | bytes):
        return "{} {}".format(*_described(node)[:2])
    return str(node) if isinstance(node, float) and not math.isfinite(node) else node


def _mask(kind: str, model: Generator | Classifier) -> dict[str, Any]:
    """How many elements a mask has, and which share of them is one; of an ensemble, the share to be expected."""
    if kind == "masked":
        weights = [p for p in model.net.parameters() if p.ndim == 4]
        elements, ones = sum(w.numel() for w in weights), sum(int(w.count_nonzero()) for w in weights)
        return {"mask": {"elements": elements, "ones": ones, "share": ones / elements}}
    if isinstance(model.net, Ensemble):
        theta = model.net.theta
        return {"mask": {"elements": theta.numel(), "share": float(theta.double().mean())}}
    return {}


def _arrays(node: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every array of a tree with the path to it."""
    if isinstance(node, dict | list | tuple):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _arrays(value, f"{name}/{key}" if name else str(key))
    elif isinstance(node, torch.Tensor | np.ndarray | bytes):
        yield name, node


def _part(name: str, array: Any, kind: str, parameters: int) -> dict[str, Any]:
    """An array's bytes, and what the numbers that it stands for would take as float32."""
    type_, shape, stored = _described(array)
    numbers = parameters if (kind, name) in CODED else math.prod(shape)
    return {"name": name, "type": type_, "shape": shape, "bytes": stored, "float32_bytes": 4 * numbers}


def _described(array: torch.Tensor | np.ndarray[Any, Any] | bytes) -> tuple[str, list[int], int]:
    """Type, shape and bytes of an array."""
    if isinstance(array, bytes):
        return "uint8", [len(array)], len(array)
    return str(array.dtype).removeprefix("torch."), list(array.shape), array.nbytes


def show_model(found: dict[str, Any], console: Console) -> None:
    """What was found, as a person reads it."""

    def table(title: str, *columns: str) -> Table:
        made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        made.show_header = bool(columns)
        for name in columns or ("", ""):
            made.add_column(name, justify="right" if name.startswith(("bytes", "as")) else "left", overflow="fold")
        return made

    console.print(printable(found["file"], None), markup=False, soft_wrap=True)
    network = table("\nnetwork")
    for name, text in _network(found).items():
        network.add_row(name, escape(printable(text, None)))
    parts = table("\nparts", "part", "type", "bytes", "as float32")
    whole = {"name": "the file", "type": "", "bytes": found["bytes"], "float32_bytes": found["float32_bytes"]}
    for p in (*found["parts"], whole):
        type_ = f"{p['type']} {' x '.join(map(str, p.get('shape', [])))}"
        floats = f"{p['float32_bytes']:,}" if "float32_bytes" in p else ""
        parts.add_row(escape(printable(p["name"], None)), type_, f"{p['bytes']:,}", floats)
    about = table("\nwhat it says of itself")
    for name, value in ({"privacy": "not stated"} | found["about"]).items():
        about.add_row(
            escape(printable(LABELS.get(name, name.replace("_", " ")), None)),
            escape(printable(_text(name, value), None)),
        )
    for made in (network, parts, about):
        console.print(made)


def _network(found: dict[str, Any]) -> dict[str, str]:
    """The rows on a model's network."""
    few = ", ".join(found["classes"][:20]) + (", ..." if len(found["classes"]) > 20 else "")
    own = {k: v for k, v in found["settings"].items() if k not in ("generator", "classes", "z", "seed")}
    rows = {
        "kind": f"{found['kind']}: {found['meaning']}",
        "architecture": found["architecture"] + "".join(f", {k} {v}" for k, v in own.items()),
        "pictures": f"{' x '.join(map(str, found['shape']))} (channels x height x width)",
        **({"noise": f"{found['z']} numbers a picture"} if found["z"] else {}),
        "classes": f"{len(found['classes'])}: {few}" if few else "none: trained without labels",
        "weights": f"{found['parameters']:,}",
    }
    if mask := found.get("mask"):
        rows["seed of signs"] = str(found["settings"].get("seed"))
        share = f"{100 * mask['share']:.1f}% of {mask['elements']:,} elements"
        rows["ones in mask"] = share if "ones" in mask else f"{share}, to be expected of a draw"
    return rows | {"BatchNorm": f"statistics {found['batch_norm']}"}


def _text(name: str, value: Any) -> str:
    """A value of `about` in words."""
    if name in ("bytes_up", "bytes_down") and isinstance(value, int):
        return f"{value:,} ({size(value)}) in all"
    return "; ".join(map(str, value)) if isinstance(value, list) else str(value)
