"""Data sets from Python objects: arrays, or any torch Dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.arrays import as_images, as_labels, gather
from vitrail.data.dataset import Dataset, Images
from vitrail.data.decode import is_grey, planes
from vitrail.data.holdout import CONTENT, check_test_fraction, hold_out
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
    """Make a data set from arrays.

    Args:
        images: Array of shape (n, h, w), (n, h, w, c) or (n, c, h, w), of bytes or of floats from 0 to 1.
        labels: One integer or text per image, or None.
        test_images: Test images; None: images are held out.
        test_labels: Labels of the test images.
        name: Name of the data set in reports.
        size: Height and width of the result; None: 32.
        test_fraction: Without test images, probability that an image is held out, by a hash of its pixels; duplicates
            are on the same side.

    Returns:
        Square images of one size, as training and test images.

    Raises:
        VitrailError: If shapes, values or numbers of labels do not match.

    Examples:
        >>> data = from_arrays(np.eye(28)[:, :, None] * np.linspace(0, 1, 28), ["cat", "dog"] * 14)
        >>> data.shape, data.classes, len(data.train), len(data.test)
        ((1, 32, 32), ('cat', 'dog'), 20, 8)
    """
    train, test, classes = gather((images, labels), (test_images, test_labels), side(size), name)
    return _dataset(name, train, test, classes, test_fraction)


def from_torch(
    dataset: Any, test: Any = None, name: str = "given", size: int | None = None, *, test_fraction: float = 0.2
) -> Dataset:
    """Make a data set from a torch Dataset.

    Args:
        dataset: Any torch Dataset, or iterable, of (image, label) or images. An image is a PIL image, or an array of
            bytes or of floats from 0 to 1.
        test: Test set of the same kind; None: images are held out.
        name: Name of the data set in reports.
        size: Height and width of the result; None: 32.
        test_fraction: Without a test set, probability that an image is held out, by a hash of its pixels.

    Returns:
        Square images of one size, as training and test images.

    Raises:
        VitrailError: If the data set is empty, only some images have labels, or shapes or values are invalid.

    Examples:
        >>> import torch
        >>> x, y = torch.rand(10, 1, 8, 8), torch.arange(10) % 2
        >>> data = from_torch(torch.utils.data.TensorDataset(x, y), size=8, test_fraction=0)
        >>> data.shape, data.classes, len(data.train)
        ((1, 8, 8), ('0', '1'), 10)
    """
    pixels, labels = _listed(dataset, name, side(size))
    test_pixels, test_labels = ([], None) if test is None else _listed(test, name, side(size))
    if test is not None and (labels is None) != (test_labels is None):
        raise VitrailError(f"data={name}: labels for only one of training and test images; give both or none")
    y, test_y, classes = as_labels(labels, test_labels, name)
    channels = max(len(p) for p in pixels + test_pixels)  # if one is in colour, all become
    train = Images(_stacked(pixels, channels), y)
    test_set = None if test is None else Images(_stacked(test_pixels, channels), test_y)
    return _dataset(name, train, test_set, classes, test_fraction)


def _stacked(pixels: list[NDArray[np.uint8]], channels: int) -> NDArray[np.uint8]:
    return np.stack([np.broadcast_to(p, (channels, *p.shape[1:])) for p in pixels])


def _dataset(name: str, train: Images, test: Images | None, classes: tuple[str, ...], test_fraction: float) -> Dataset:
    check_test_fraction(test_fraction)
    if test is not None:
        return Dataset(name, train, test, classes)
    return Dataset(name, *hold_out(train, test_fraction), classes, split=CONTENT)


def _listed(dataset: Any, name: str, size: int) -> tuple[list[NDArray[np.uint8]], list[Any] | None]:
    """Return each image as (c, size, size), and the labels or None."""
    pixels: list[NDArray[np.uint8]] = []
    labels: list[Any] = []
    items = (dataset[i] for i in range(len(dataset))) if hasattr(dataset, "__len__") else iter(dataset)
    for i, item in enumerate(items):
        image = item
        if isinstance(item, tuple | list):
            image = item[0]
            # A TensorDataset without labels has (image,); labels may be tensors.
            labels += [label.tolist() if hasattr(label, "tolist") else label for label in item[1:2]]
        where = f"{name}, image {i}"
        if isinstance(image, Image.Image):
            pixels.append(fit(planes(image, is_grey(image), where)[None], size)[0])
        else:
            pixels.append(as_images(np.asarray(image)[None], size, where)[0])
    if not pixels:
        raise VitrailError(f"data={name}: the data set is empty; give one with images")
    if labels and len(labels) != len(pixels):
        raise VitrailError(f"data={name}: only {len(labels)} of {len(pixels)} images have labels; give all or none")
    return pixels, labels or None
