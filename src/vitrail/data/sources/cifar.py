"""CIFAR-10, binary version: per image one byte for the label and three planes of 32x32."""

from __future__ import annotations

from pathlib import Path

import numpy as np

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
    batches = cifar_batches(request.source.argument)
    hint = "If only some of the five training batches are available, name them: cifar10:1 or cifar10:1-3."

    def batch(name: str) -> Images:
        archive = "cifar-10-binary.tar.gz"
        return _batch(find("cifar10", name, request.home, request.progress, packed_in=archive, hint=hint))

    parts = [batch(f"data_batch_{i}.bin") for i in batches]
    test = batch("test_batch.bin")
    pixels = np.concatenate([p.pixels for p in parts])
    labels = np.concatenate([p.labels for p in parts if p.labels is not None])
    return request.dataset(
        Images(fit(pixels, request.size), labels),
        Images(fit(test.pixels, request.size), test.labels),
        CLASSES,
    )


def _batch(path: Path) -> Images:
    raw = np.fromfile(path, np.uint8)
    if len(raw) != IMAGES * _RECORD:
        raise Malformed(f"{path}: {len(raw):,} bytes, expected {IMAGES:,} images of {_RECORD:,} (label, 3x32x32)")
    records = raw.reshape(-1, _RECORD)
    labels = records[:, 0]
    if labels.max() > 9:
        where = int(np.argmax(labels > 9))
        raise Malformed(f"{path}: image {where} has label {labels[where]}, expected 0 to 9")
    return Images(records[:, 1:].reshape(-1, 3, 32, 32), labels.astype(np.int64))
