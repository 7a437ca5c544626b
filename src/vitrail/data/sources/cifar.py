"""CIFAR-10, binary version: per image one byte for the label and three planes of 32x32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrail.data.dataset import Dataset, Images
from vitrail.data.lookup import find
from vitrail.data.read_request import ReadRequest
from vitrail.data.resize import fit
from vitrail.data.specs import cifar_batches
from vitrail.utils.errors import Malformed

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_RECORD = 1 + 3 * 32 * 32
IMAGES = 10_000  # per file; checked, because half a file is also a valid number of records


def read(request: ReadRequest) -> Dataset:
    """Read CIFAR-10 with its official split; only the training batches of the setting."""
    archive = "cifar-10-binary.tar.gz"
    hint = "If only some of the five training batches are available, name them: cifar10:1 or cifar10:1-3."

    def images(*names: str) -> Images:
        files = [find("cifar10", n, request.home, request.progress, packed_in=archive, hint=hint) for n in names]
        records = np.concatenate([_records(file) for file in files])
        return Images(fit(records[:, 1:].reshape(-1, 3, 32, 32), request.size), records[:, 0].astype(np.int64))

    train = images(*(f"data_batch_{i}.bin" for i in cifar_batches(request.source.argument)))
    return request.dataset(train, images("test_batch.bin"), CLASSES)


def _records(path: Path) -> NDArray[np.uint8]:
    """Return the records of a file, one row per image, with valid labels."""
    raw = np.fromfile(path, np.uint8)
    if len(raw) != IMAGES * _RECORD:
        raise Malformed(f"{path}: {len(raw):,} bytes, expected {IMAGES:,} images of {_RECORD:,} (label, 3x32x32)")
    records = raw.reshape(-1, _RECORD)
    if len(wrong := np.flatnonzero(records[:, 0] > 9)):
        raise Malformed(f"{path}: image {wrong[0]} has label {records[wrong[0], 0]}, expected 0 to 9")
    return records
