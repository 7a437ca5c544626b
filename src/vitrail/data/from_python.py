"""Data given from Python: arrays, or any torch data set."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.arrays import as_labels, as_pictures, gather
from vitrail.data.dataset import Dataset, Images
from vitrail.data.decode import is_grey, planes
from vitrail.data.holdout import CONTENT, check_share, hold_out
from vitrail.data.resize import fit, side
from vitrail.utils.errors import VitrailError


def from_arrays(
    images: Any,
    labels: Any = None,
    test_images: Any = None,
    test_labels: Any = None,
    name: str = "given",
    size: int | None = None,
    *,
    test_fraction: float = 0.2,
) -> Dataset:
    """A data set of arrays (n, h, w), (n, h, w, c) or (n, c, h, w), of bytes or of floats from 0 to 1.

    Without test images, each image is held out with probability `test_fraction`, by a hash of its pixels, so duplicates
    are on the same side.

    >>> data = from_arrays(np.eye(28)[:, :, None] * np.linspace(0, 1, 28), ["cat", "dog"] * 14)
    >>> data.shape, data.classes, len(data.train), len(data.test)
    ((1, 32, 32), ('cat', 'dog'), 20, 8)
    """
    train, test, classes = gather((images, labels), (test_images, test_labels), side(size), name)
    return _dataset(name, train, test, classes, test_fraction)


def from_torch(
    dataset: Any, test: Any = None, name: str = "given", size: int | None = None, *, test_fraction: float = 0.2
) -> Dataset:
    """A data set of any torch Dataset of (picture, label) or pictures: PIL, bytes or floats from 0 to 1."""
    pixels, labels = _listed(dataset, name, side(size))
    test_pixels, test_labels = ([], None) if test is None else _listed(test, name, side(size))
    if test is not None and (labels is None) != (test_labels is None):
        raise VitrailError(f"data={name}: labels for only one of train and test pictures; give both or none")
    y, test_y, classes = as_labels(labels, test_labels, name)
    channels = max(len(p) for p in pixels + test_pixels)  # where one is in colour, all are
    train = Images(_stacked(pixels, channels), y)
    held = None if test is None else Images(_stacked(test_pixels, channels), test_y)
    return _dataset(name, train, held, classes, test_fraction)


def _stacked(pixels: list[NDArray[np.uint8]], channels: int) -> NDArray[np.uint8]:
    return np.stack([np.broadcast_to(p, (channels, *p.shape[1:])) for p in pixels])


def _dataset(name: str, train: Images, test: Images | None, classes: tuple[str, ...], test_fraction: float) -> Dataset:
    check_share(test_fraction)
    if test is not None:
        return Dataset(name, train, test, classes)
    return Dataset(name, *hold_out(train, test_fraction), classes, split=CONTENT)


def _listed(dataset: Any, name: str, size: int) -> tuple[list[NDArray[np.uint8]], list[Any] | None]:
    """Each picture as (c, size, size), and the labels where there are any."""
    pixels: list[NDArray[np.uint8]] = []
    labels: list[Any] = []
    items = (dataset[i] for i in range(len(dataset))) if hasattr(dataset, "__len__") else iter(dataset)
    for i, item in enumerate(items):
        image = item
        if isinstance(item, tuple | list):
            image = item[0]
            labels += [_plain(label) for label in item[1:2]]  # a TensorDataset has (picture,) without labels
        pixels.append(_picture(image, size, f"{name}, picture {i}"))
    if not pixels:
        raise VitrailError(f"data={name}: the data set is empty; give one with pictures")
    if labels and len(labels) != len(pixels):
        raise VitrailError(f"data={name}: only {len(labels)} of {len(pixels)} pictures have labels; give all or none")
    return pixels, labels or None


def _plain(label: Any) -> Any:
    """A label without its tensor."""
    return label.tolist() if hasattr(label, "tolist") else label


def _picture(image: Any, size: int, where: str) -> NDArray[np.uint8]:
    """One picture as (c, size, size)."""
    if isinstance(image, Image.Image):
        batch = fit(planes(image, is_grey(image), where)[None], size)
    else:
        batch = as_pictures(np.asarray(image)[None], size, where)
    picture: NDArray[np.uint8] = batch[0]
    return picture
