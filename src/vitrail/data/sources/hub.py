"""Data sets of the Hugging Face hub, or local copies of them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.arrays import as_labels
from vitrail.data.dataset import Dataset, Images
from vitrail.data.decode import File, all_grey, decode_all
from vitrail.data.read_request import ReadRequest
from vitrail.utils.errors import Malformed, VitrailError

_LABEL_NAMES = ("label", "labels", "class", "target", "digit", "fine_label")


def read(request: ReadRequest) -> Dataset:
    """Read the training split of a data set, and its test (or else validation) split if it has one."""
    splits = _splits(request)
    if "train" not in splits:
        raise VitrailError(f"data={request.source}: has no split train, only {', '.join(splits)}; use another data set")
    test_name = next((name for name in ("test", "validation", "valid") if name in splits), None)
    names = ["train"] if test_name is None else ["train", test_name]
    empty = next((name for name in names if not len(splits[name])), None)
    if empty is not None:
        raise Malformed(f"data={request.source}: the split {empty} is empty")
    features = splits["train"].features
    image, label = _image_column(features, request), _label_column(features)
    y, test_y, classes = _labels([splits[name] for name in names], label, request)
    # Not decoded yet: the headers show first whether all images are grey.
    from datasets import Image

    rows = {name: splits[name].cast_column(image, Image(decode=False)) for name in names}

    def files(split: str) -> Iterator[File]:
        return (_file(row[image], f"{request.source}, {split} {i}") for i, row in enumerate(rows[split]))

    grey = all_grey(chain.from_iterable(map(files, names)))
    pixels = [decode_all(files(n), len(rows[n]), grey, f"decoding {n}", request) for n in names]
    return request.dataset(Images(pixels[0], y), Images(pixels[1], test_y) if test_name else None, classes)


def _splits(request: ReadRequest) -> Any:
    try:
        import datasets
    except ImportError:
        raise VitrailError(
            f"data={request.source}: Hugging Face's datasets is not installed; `pip install 'vitrail[hf]'`"
        ) from None
    local = Path(request.source.argument).expanduser()
    name = str(local) if local.is_dir() else request.source.argument
    try:
        return datasets.load_dataset(name, cache_dir=str(request.home / "cache" / "huggingface"))
    except Exception as error:  # the library's exceptions have no common base
        reason = str(error).strip().splitlines() or [type(error).__name__]
        kind = Malformed if local.is_dir() else VitrailError
        raise kind(
            f"data={request.source}: cannot be loaded ({reason[0]}). Check the name; connect to the "
            "internet and run again; or give the path of a local copy, hf:PATH"
        ) from error


def _image_column(features: Any, request: ReadRequest) -> str:
    for name, feature in features.items():
        if type(feature).__name__ == "Image":
            return str(name)
    raise VitrailError(f"data={request.source}: none of its columns has images ({', '.join(features)})")


def _label_column(features: Any) -> str | None:
    """Find a column of classes, or else one of integers or text with a common name."""
    classes = [name for name, feature in features.items() if type(feature).__name__ == "ClassLabel"]
    plain = [n for n, f in features.items() if getattr(f, "dtype", "").startswith(("int", "uint", "string"))]
    usual = [name for name in _LABEL_NAMES if name in classes] + classes
    return next(iter(usual + [name for name in _LABEL_NAMES if name in plain]), None)


def _labels(
    splits: list[Any], label: str | None, request: ReadRequest
) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None, tuple[str, ...]]:
    if label is None:
        return None, None, ()
    raw = [np.asarray(list(split[label])) for split in splits]
    feature = splits[0].features[label]
    if type(feature).__name__ != "ClassLabel":
        return as_labels(raw[0], raw[1] if len(raw) > 1 else None, str(request.source))
    for part in raw:
        if part.dtype.kind != "i" or part.min() < 0:  # None, or the hub's value for a secret label
            raise Malformed(f"data={request.source}: some images have no label; use a copy in which all have one")
    numbers = [part.astype(np.int64) for part in raw]
    return numbers[0], numbers[1] if len(raw) > 1 else None, tuple(feature.names)


def _file(cell: Any, name: str) -> File:
    if cell is None:
        raise Malformed(f"{name}: no image")
    return io.BytesIO(cell["bytes"]) if cell["bytes"] is not None else str(cell["path"]), name
