"""Conversion of arrays to images and labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.dataset import Images
from vitrail.data.resize import fit
from vitrail.data.sources.npy_files import StoredArray
from vitrail.utils.errors import Malformed

_CHANNELS = (1, 2, 3, 4)  # grey, grey and alpha, RGB, RGBA


def as_images(images: Any, size: int, where: str) -> NDArray[np.uint8]:
    """Convert an array to images of one size.

    Args:
        images: Array of shape (n, h, w), (n, h, w, c) or (n, c, h, w); see `as_bytes` for its values.
        size: Height and width of the result.
        where: Origin of the array, for error messages.

    Returns:
        Bytes of shape (n, c, size, size).

    Raises:
        Malformed: If the array has another shape or its values are out of range.

    Examples:
        >>> as_images(np.ones((2, 8, 8, 3)), 4, "here").shape
        (2, 3, 4, 4)
    """
    if isinstance(images, StoredArray):
        return _from_blocks(images, size, where)
    return fit(as_bytes(_channels(np.asarray(images), where), where), size)


def _from_blocks(images: StoredArray, size: int, where: str) -> NDArray[np.uint8]:
    """Resize an array of an .npz file in blocks."""
    n, channels = _channels(images.placeholder(), where).shape[:2]
    if images.dtype.kind not in "iufb":
        raise Malformed(f"{where}: values of type {images.dtype}, expected numbers")
    images.check_result(n * channels * size * size)
    out = np.empty((n, channels, size, size), np.uint8)
    done = 0
    for block in images.blocks():
        out[done : done + len(block)] = fit(as_bytes(_channels(block, where), where), size)
        done += len(block)
    return out


def _channels(array: NDArray[Any], where: str) -> NDArray[Any]:
    """Return images as (n, c, h, w) without alpha."""
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4:
        array = _channels_first(array, where)
    else:
        raise Malformed(f"{where}: shape {array.shape}, expected (n, h, w), (n, h, w, c) or (n, c, h, w)")
    if 0 in array.shape:
        raise Malformed(f"{where}: shape {array.shape} has no pixels")
    return array[:, : 1 if array.shape[1] < 3 else 3]  # the next channel is alpha


def _channels_first(array: NDArray[Any], where: str) -> NDArray[Any]:
    _, a, b, c = array.shape
    first, last = a in _CHANNELS, c in _CHANNELS
    if first and last and (b == c) != (a == b):  # a tiny image: choose the square one
        first, last = b == c, a == b
    if first == last:
        problem = "is ambiguous" if first else "has no axis of 1 to 4 channels"
        raise Malformed(f"{where}: shape {array.shape} {problem}; expected (n, h, w, c) or (n, c, h, w)")
    return array if first else array.transpose(0, 3, 1, 2)


def as_bytes(array: NDArray[Any], where: str) -> NDArray[np.uint8]:
    """Convert values to bytes: floats from 0 to 1, 16-bit integers and booleans are scaled, other integers must fit."""
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype == np.uint16:
        return (array // 257 + (array % 257 > 128)).astype(np.uint8)  # rounds to the nearest; 257 = 65535 / 255
    if array.dtype.kind not in "iuf":
        raise Malformed(f"{where}: values of type {array.dtype}, expected numbers")
    low, high = array.min(), array.max()
    most = 1 if array.dtype.kind == "f" else 255
    if not (low >= 0 and high <= most):  # also true for NaN
        raise Malformed(f"{where}: {array.dtype} values from {low} to {high}, expected 0 to {most}")
    if most == 255:
        return array.astype(np.uint8)
    scaled = array * 255.0
    return np.rint(scaled, out=scaled).astype(np.uint8)


def gather(
    train: tuple[Any, Any], test: tuple[Any, Any], size: int, where: str, names: Any = None
) -> tuple[Images, Images | None, tuple[str, ...]]:
    """Convert arrays to labelled images.

    Args:
        train: Training images and labels; labels may be None.
        test: Test images and labels, or two None.
        size: Height and width of the result.
        where: Origin of the arrays, for error messages.
        names: Names of the labels 0, 1, ...; None: the labels themselves are the names.

    Returns:
        Training images, test images or None, and the names of the classes.

    Raises:
        Malformed: If shapes, values, channels or numbers of labels do not match.
    """
    (images, labels), (test_images, test_labels) = train, test
    if test_images is None and test_labels is not None:
        raise Malformed(f"{where}: test labels without test images")
    if test_images is not None and (labels is None) != (test_labels is None):
        raise Malformed(f"{where}: labels for only one of training and test images")
    y, test_y, classes = as_labels(labels, test_labels, where, names)
    train_set = _labelled(as_images(images, size, f"{where}, train"), y, f"{where}, train")
    if test_images is None:
        return train_set, None, classes
    test_set = _labelled(as_images(test_images, size, f"{where}, test"), test_y, f"{where}, test")
    if train_set.pixels.shape[1] != test_set.pixels.shape[1]:
        raise Malformed(f"{where}: only one of training and test images is in colour, the other is grey")
    return train_set, test_set, classes


def _labelled(pixels: NDArray[np.uint8], labels: NDArray[np.int64] | None, where: str) -> Images:
    if labels is not None and len(labels) != len(pixels):
        raise Malformed(f"{where}: {len(labels):,} labels for {len(pixels):,} images")
    return Images(pixels, labels)


def as_labels(
    train: Any, test: Any, where: str, names: Any = None
) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None, tuple[str, ...]]:
    """Convert labels to 0, 1, ...; return those of training and test, and the names of the classes.

    Without `names` the classes are the sorted values.
    """
    raw = [None if part is None else _flat(part, where) for part in (train, test)]
    if raw[0] is None:
        return None, None, ()
    if names is not None:
        classes = _class_names(names, where)
        return _positions(raw[0], len(classes), where), _positions(raw[1], len(classes), where), classes
    values = np.unique(np.concatenate([part for part in raw if part is not None]))
    labels = [None if part is None else np.searchsorted(values, part).astype(np.int64) for part in raw]
    return labels[0], labels[1], tuple(str(v) for v in values.tolist())


def _class_names(names: Any, where: str) -> tuple[str, ...]:
    array = names.read() if isinstance(names, StoredArray) else np.asarray(names)
    if array.ndim != 1 or array.dtype.kind != "U":
        raise Malformed(f"{where}: classes of type {array.dtype} and shape {array.shape}, expected a list of texts")
    classes = tuple(array.tolist())
    if len(set(classes)) < len(classes):
        raise Malformed(f"{where}: classes has the same name twice")
    return classes


def _positions(labels: NDArray[Any] | None, classes: int, where: str) -> NDArray[np.int64] | None:
    """Check that labels are positions in a list of class names."""
    if labels is None or not len(labels):
        return None if labels is None else labels.astype(np.int64)
    if labels.dtype.kind not in "iu":
        raise Malformed(f"{where}: labels of type {labels.dtype}, expected integers: their names are in classes")
    if labels.min() < 0 or labels.max() >= classes:
        raise Malformed(
            f"{where}: labels from {labels.min()} to {labels.max()}, but classes has {classes} names: expected 0 to "
            f"{classes - 1}"
        )
    return labels.astype(np.int64)


def _flat(labels: Any, where: str) -> NDArray[Any]:
    array = labels.read() if isinstance(labels, StoredArray) else np.asarray(labels)
    if array.ndim == 2 and array.shape[1] == 1:  # as in MedMNIST
        array = array[:, 0]
    if array.ndim != 1:
        raise Malformed(f"{where}: labels of shape {array.shape}, expected one per image")
    if array.dtype.kind == "f" and np.all(np.isfinite(array) & (array == np.rint(array))):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iuUb":
        raise Malformed(f"{where}: labels of type {array.dtype}, expected integers or text")
    return array
