"""Street View House Numbers, cropped digits: MATLAB files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vitrail.data.dataset import Dataset, Images
from vitrail.data.read_request import ReadRequest
from vitrail.data.resize import fit
from vitrail.utils.errors import Malformed


def read(request: ReadRequest) -> Dataset:
    """Read the cropped digits of SVHN with their official split."""
    train, test = (_part(request.file(f"{part}_32x32.mat"), request.size) for part in ("train", "test"))
    return request.dataset(train, test, tuple("0123456789"))


def _part(path: Path, size: int) -> Images:
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=("X", "y"))
    except Exception as error:  # scipy's reader raises many types of exceptions
        raise Malformed(f"{path}: not a complete MATLAB file ({error})") from error
    for key in ("X", "y"):
        if key not in content:
            raise Malformed(f"{path}: has no variable {key}")
    images, labels = np.asarray(content["X"]), np.asarray(content["y"]).ravel()
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        raise Malformed(f"{path}: X is {images.dtype} of shape {images.shape}, expected uint8 of (32, 32, 3, images)")
    if len(labels) != images.shape[3] or not len(labels):
        raise Malformed(f"{path}: {len(labels):,} labels for {images.shape[3]:,} images")
    if labels.dtype.kind not in "iu" or labels.min() < 1 or labels.max() > 10:
        raise Malformed(f"{path}: labels outside 1 to 10")
    pixels = np.ascontiguousarray(images.transpose(3, 2, 0, 1))
    return Images(fit(pixels, size), labels.astype(np.int64) % 10)  # in the file, the digit 0 is class 10
