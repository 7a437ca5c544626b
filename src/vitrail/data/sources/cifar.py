"""CIFAR-10, binary version: a label byte and three planes of 32x32 for each picture."""

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
PICTURES = 10_000  # in each file; checked, because half a file is a whole number of records, too


def read(request: ReadRequest) -> Dataset:
    """CIFAR-10 with its official split; of the train batches only those asked for."""
    batches = cifar_batches(request.source.argument)
    hint = "With some of the five train batches only, say which: cifar10:1 or, for three, cifar10:1-3."

    def batch(name: str) -> Images:
        archive = "cifar-10-binary.tar.gz"
        return _batch(find("cifar10", name, request.home, request.progress, packed_in=archive, hint=hint))

    parts = [batch(f"data_batch_{i}.bin") for i in batches]
    test = batch("test_batch.bin")
    pixels = np.concatenate([p.pixels for p in parts])
    labels = np.concatenate([p.labels for p in parts if p.labels is not None])
    return request.answer(
        Images(fit(pixels, request.size), labels),
        Images(fit(test.pixels, request.size), test.labels),
        CLASSES,
    )


def _batch(path: Path) -> Images:
    raw = np.fromfile(path, np.uint8)
    if len(raw) != PICTURES * _RECORD:
        raise Malformed(f"{path}: {len(raw):,} bytes, expected {PICTURES:,} pictures of {_RECORD:,} (label, 3x32x32)")
    records = raw.reshape(-1, _RECORD)
    labels = records[:, 0]
    if labels.max() > 9:
        where = int(np.argmax(labels > 9))
        raise Malformed(f"{path}: picture {where} has label {labels[where]}, expected 0 to 9")
    return Images(records[:, 1:].reshape(-1, 3, 32, 32), labels.astype(np.int64))
