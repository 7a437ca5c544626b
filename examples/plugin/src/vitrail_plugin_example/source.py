"""A data source: `data=stripes` or `data=stripes:200`."""

from __future__ import annotations

import numpy as np

from vitrail.data import Dataset, Images, ReadRequest


def stripes(request: ReadRequest) -> Dataset:
    """stripes:N, N images of horizontal or vertical stripes"""
    n = int(request.source.argument or 400)
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=n)
    lines = rng.integers(256, size=(n, request.size), dtype=np.uint8)
    rows, columns = lines[:, None, :, None], lines[:, None, None, :]
    pixels = np.where((labels == 0)[:, None, None, None], rows, columns)
    shape = (n, 1, request.size, request.size)
    images = Images(np.ascontiguousarray(np.broadcast_to(pixels, shape)), labels.astype(np.int64))
    return request.dataset(images, classes=("horizontal", "vertical"))
