"""Sets of pictures, as every other module sees them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.holdout import OWN


@dataclass(frozen=True)
class Images:
    """Pictures with, where there are any, labels, attributes, groups (such as sub-folders) and who is on them."""

    pixels: NDArray[np.uint8]  # (n, channels, height, width)
    labels: NDArray[np.int64] | None = None  # (n,), 0 <= label < classes
    attributes: NDArray[np.bool_] | None = None  # (n, attributes)
    groups: NDArray[np.int64] | None = None  # (n,)
    identities: NDArray[np.int64] | None = None  # (n,), equal where two pictures show one person

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, indices: NDArray[np.int64]) -> Images:
        """The pictures at these positions, in this order."""

        def pick(a: NDArray[Any] | None) -> Any:
            return None if a is None else a[indices]

        more = (pick(a) for a in (self.labels, self.attributes, self.groups, self.identities))
        return Images(self.pixels[indices], *more)

    def without_labels(self) -> Images:
        """The same pictures, unlabelled."""
        return replace(self, labels=None)

    def digest(self) -> str:
        """A name for the content: equal pictures and labels have equal digests, wherever they came from."""
        h = hashlib.blake2b(digest_size=16)
        for a in (self.pixels, self.labels):
            if a is not None:
                h.update(f"{a.dtype}{a.shape}".encode())
                h.update(np.ascontiguousarray(a).data)
        return h.hexdigest()


@dataclass(frozen=True)
class Dataset:
    """A data set: what may be trained on, what is held out, and what its labels are called."""

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    split: str = OWN  # where the test images come from: a test set of its own, or a hash of each image

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every picture."""
        c, h, w = self.train.pixels.shape[1:]
        return c, h, w

    def without_labels(self) -> Dataset:
        """The same pictures, unlabelled."""
        return replace(self, train=self.train.without_labels(), test=self.test.without_labels(), classes=())
