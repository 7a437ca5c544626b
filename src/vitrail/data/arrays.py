"""From arrays as people have them to pictures as we hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.dataset import Images
from vitrail.data.resize import fit
from vitrail.data.sources.npy_files import StoredArray
from vitrail.utils.errors import Malformed

_CHANNELS = (1, 2, 3, 4)  # grey, grey and alpha, colour, colour and alpha


def as_pictures(images: Any, size: int, where: str) -> NDArray[np.uint8]:
    """Pictures (n, c, size, size) from arrays (n, h, w), (n, h, w, c) or (n, c, h, w).

    >>> as_pictures(np.ones((2, 8, 8, 3)), 4, "here").shape
    (2, 3, 4, 4)
    """
    if isinstance(images, StoredArray):
        return _from_blocks(images, size, where)
    return fit(as_bytes(_colours(np.asarray(images), where), where), size)


def _from_blocks(images: StoredArray, size: int, where: str) -> NDArray[np.uint8]:
    """Resize an array of an .npz file, some images at a time."""
    n, channels = _colours(images.placeholder(), where).shape[:2]
    if images.dtype.kind not in "iufb":
        raise Malformed(f"{where}: values of type {images.dtype}, expected numbers")
    images.check_result(n * channels * size * size)
    out = np.empty((n, channels, size, size), np.uint8)
    done = 0
    for block in images.blocks():
        out[done : done + len(block)] = fit(as_bytes(_colours(block, where), where), size)
        done += len(block)
    return out


def _colours(array: NDArray[Any], where: str) -> NDArray[Any]:
    """Images as (n, c, h, w) without alpha."""
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4:
        array = _channels_first(array, where)
    else:
        raise Malformed(f"{where}: shape {array.shape}, expected (n, h, w), (n, h, w, c) or (n, c, h, w)")
    if 0 in array.shape:
        raise Malformed(f"{where}: shape {array.shape} holds no pixels")
    return array[:, : 1 if array.shape[1] < 3 else 3]  # what follows them is alpha


def _channels_first(array: NDArray[Any], where: str) -> NDArray[Any]:
    _, a, b, c = array.shape
    first, last = a in _CHANNELS, c in _CHANNELS
    if first and last and (b == c) != (a == b):  # a tiny picture: the square reading is the right one
        first, last = b == c, a == b
    if first == last:
        problem = "is ambiguous" if first else "has no axis of 1 to 4 channels"
        raise Malformed(f"{where}: shape {array.shape} {problem}; expected (n, h, w, c) or (n, c, h, w)")
    return array if first else array.transpose(0, 3, 1, 2)


def as_bytes(array: NDArray[Any], where: str) -> NDArray[np.uint8]:
    """Values as bytes: floats from 0 to 1, 16-bit and boolean ones are scaled, other integers must fit."""
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype == np.uint16:
        return (array // 257 + (array % 257 > 128)).astype(np.uint8)  # the nearest; 257 = 65535 / 255
    if array.dtype.kind not in "iuf":
        raise Malformed(f"{where}: values of type {array.dtype}, expected numbers")
    low, high = array.min(), array.max()
    most = 1 if array.dtype.kind == "f" else 255
    if not (low >= 0 and high <= most):  # also refuses NaN
        raise Malformed(f"{where}: {array.dtype} values from {low} to {high}, expected 0 to {most}")
    if most == 255:
        return array.astype(np.uint8)
    scaled = array * 255.0
    return np.rint(scaled, out=scaled).astype(np.uint8)


def gather(
    train: tuple[Any, Any], test: tuple[Any, Any], size: int, where: str
) -> tuple[Images, Images | None, tuple[str, ...]]:
    """Train pictures, test pictures where there are any, and the names of the classes."""
    (images, labels), (test_images, test_labels) = train, test
    if test_images is None and test_labels is not None:
        raise Malformed(f"{where}: test labels without test pictures")
    if test_images is not None and (labels is None) != (test_labels is None):
        raise Malformed(f"{where}: labels for only one of train and test pictures")
    y, test_y, classes = as_labels(labels, test_labels, where)
    pictures = _labelled(as_pictures(images, size, f"{where}, train"), y, f"{where}, train")
    if test_images is None:
        return pictures, None, classes
    held = _labelled(as_pictures(test_images, size, f"{where}, test"), test_y, f"{where}, test")
    if pictures.pixels.shape[1] != held.pixels.shape[1]:
        raise Malformed(f"{where}: one of train and test pictures is grey and the other in colour")
    return pictures, held, classes


def _labelled(pixels: NDArray[np.uint8], labels: NDArray[np.int64] | None, where: str) -> Images:
    if labels is not None and len(labels) != len(pixels):
        raise Malformed(f"{where}: {len(labels):,} labels for {len(pixels):,} pictures")
    return Images(pixels, labels)


def as_labels(
    train: Any, test: Any, where: str
) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None, tuple[str, ...]]:
    """Labels of train and test as 0, 1, ... and the names of the classes: the sorted values that occur."""
    raw = [None if part is None else _flat(part, where) for part in (train, test)]
    if raw[0] is None:
        return None, None, ()
    values = np.unique(np.concatenate([part for part in raw if part is not None]))
    labels = [None if part is None else np.searchsorted(values, part).astype(np.int64) for part in raw]
    return labels[0], labels[1], tuple(str(v) for v in values.tolist())


def _flat(labels: Any, where: str) -> NDArray[Any]:
    array = labels.whole() if isinstance(labels, StoredArray) else np.asarray(labels)
    if array.ndim == 2 and array.shape[1] == 1:  # MedMNIST's
        array = array[:, 0]
    if array.ndim != 1:
        raise Malformed(f"{where}: labels of shape {array.shape}, expected one for each picture")
    if array.dtype.kind == "f" and np.all(np.isfinite(array) & (array == np.rint(array))):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iuUb":
        raise Malformed(f"{where}: labels of type {array.dtype}, expected whole numbers or text")
    return array
