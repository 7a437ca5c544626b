"""Loading data: from a setting to pictures."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import cast

from vitrail.data.dataset import Dataset
from vitrail.data.holdout import check_share
from vitrail.data.official import FILES
from vitrail.data.progress import Progress
from vitrail.data.read_request import ReadRequest
from vitrail.data.resize import side
from vitrail.data.specs import parse_source
from vitrail.utils.errors import Malformed
from vitrail.utils.paths import data_home as default_home

# The module that reads a source; each has a function `read(request)`. They are imported when asked for.
_READERS = {
    "mnist5k": "embedded",
    "digits": "embedded",
    "mnist": "idx",
    "fashion-mnist": "idx",
    "cifar10": "cifar",
    "svhn": "svhn",
    "celeba": "celeba",
    "folder": "folder",
    "npz": "npz",
    "hf": "hub",
}


def image_side(spec: str, size: int | None = None) -> int:
    """Return the side in pixels of the images that `load` gives.

    >>> image_side("mnist"), image_side("celeba"), image_side("celeba", 16)
    (32, 64, 16)
    """
    return side(size, usual=64 if parse_source(spec).name == "celeba" else 32)


def load(
    spec: str,
    *,
    size: int | None = None,
    test_fraction: float = 0.2,
    home: Path | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """The data that a setting such as `mnist5k`, `cifar10:1` or `folder:PATH` names, as size x size pictures.

    Where the data has no test set of its own, each image is held out with probability `test_fraction`, by a hash of its
    pixels.

    >>> digits = load("digits", size=8)
    >>> len(digits.train), len(digits.test), digits.shape
    (1442, 355, (1, 8, 8))
    """
    source = parse_source(spec)
    check_share(test_fraction)
    size = image_side(spec, size)
    read = cast(
        Callable[[ReadRequest], Dataset],
        importlib.import_module(f"vitrail.data.sources.{_READERS[source.name]}").read,
    )
    try:
        return read(ReadRequest(source, size, test_fraction, home or default_home(), progress))
    except Malformed as problem:
        if source.name not in FILES:
            raise
        raise Malformed(f"{problem}; replace the file, or remove it to have it downloaded") from problem
