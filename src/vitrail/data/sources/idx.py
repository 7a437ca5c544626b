"""MNIST and Fashion-MNIST: gzipped idx files."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrail.data.dataset import Dataset, Images
from vitrail.data.read_request import ReadRequest
from vitrail.data.resize import fit
from vitrail.utils.errors import Malformed

_CLASSES = {
    "mnist": tuple("0123456789"),
    "fashion-mnist": (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
        "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
}  # fmt: skip


def read(request: ReadRequest) -> Dataset:
    """Read MNIST or Fashion-MNIST with its official split."""
    return request.dataset(_images(request, "train"), _images(request, "t10k"), _CLASSES[request.source.name])


def _images(request: ReadRequest, part: str) -> Images:
    images_file, labels_file = (request.file(f"{part}-{name}-ubyte.gz") for name in ("images-idx3", "labels-idx1"))
    images, labels = read_idx(images_file, 3), read_idx(labels_file, 1)
    if images.shape[1:] != (28, 28):
        raise Malformed(f"{images_file}: images of {images.shape[1]}x{images.shape[2]}, expected 28x28")
    if len(images) != len(labels):
        raise Malformed(f"{labels_file}: {len(labels):,} labels for {len(images):,} images in {images_file.name}")
    if not len(labels):
        raise Malformed(f"{images_file}: no images")
    if labels.max() > 9:
        raise Malformed(f"{labels_file}: label {labels.max()}, expected 0 to 9")
    return Images(fit(images[:, None], request.size), labels.astype(np.int64))


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read the array of a gzipped idx file and check its header.

    Args:
        path: The file.
        dimensions: Number of dimensions of the array.

    Raises:
        Malformed: If the file is damaged or has another header.
    """
    try:
        with gzip.open(path, "rb") as stream:
            head = stream.read(4 + 4 * dimensions)
            expected = 0x800 + dimensions  # 8: unsigned bytes
            if len(head) < 4 + 4 * dimensions:
                raise Malformed(f"{path}: the header is incomplete")
            magic, *shape = struct.unpack(f">{1 + dimensions}I", head)
            if magic != expected:
                raise Malformed(f"{path}: magic number {magic}, expected {expected}")
            size = math.prod(shape)
            # Read at most one byte too many: a small file can announce, or decompress to, any size.
            body = stream.read(size + 1) if size < 1 << 32 else b""
            if len(body) != size:
                more = "more" if len(body) > size else f"{len(body):,}"
                raise Malformed(f"{path}: header announces {size:,} bytes, found {more}")
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise Malformed(f"{path}: not a complete gzip file ({error})") from error
    return np.frombuffer(bytearray(body), np.uint8).reshape(shape)  # a bytearray, so that the array is writable
