"""Sets of images: the data types that all other packages use."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.holdout import OWN


@dataclass(frozen=True)
class Images:
    """Images with optional labels, attributes, groups and identities.

    Args:
        pixels: Bytes of shape (n, channels, height, width).
        labels: Labels of shape (n,), from 0 to the number of classes - 1.
        attributes: Boolean attributes of shape (n, attributes).
        groups: Numbers of shape (n,) of the first-level sub-folders.
        identities: Numbers of shape (n,), equal for two images of the same person.

    Examples:
        >>> images = Images(np.zeros((3, 1, 8, 8), np.uint8), labels=np.array([0, 1, 0]))
        >>> len(images), images.take(np.array([1])).labels
        (3, array([1]))
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64] | None = None
    attributes: NDArray[np.bool_] | None = None
    groups: NDArray[np.int64] | None = None
    identities: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, indices: NDArray[np.int64] | slice) -> Images:
        """Return the images at these positions, in this order.

        Args:
            indices: Positions of shape (m,), or a slice, which copies nothing.

        Returns:
            m images, with their labels and other columns.

        Examples:
            >>> images = Images(np.zeros((3, 1, 8, 8), np.uint8), labels=np.array([5, 6, 7]))
            >>> images.take(np.array([2, 0])).labels.tolist()
            [7, 5]
        """
        taken: dict[str, Any] = {name: None if a is None else a[indices] for name, a in vars(self).items()}
        return Images(**taken)

    def without_labels(self) -> Images:
        """Return the same images without labels.

        Returns:
            The images, with `labels` None.

        Examples:
            >>> Images(np.zeros((3, 1, 8, 8), np.uint8), labels=np.array([5, 6, 7])).without_labels().labels is None
            True
        """
        return replace(self, labels=None)

    def class_labels(self, classes: int) -> NDArray[np.int64]:
        """Return the labels; zeros without labels, or in a run without classes (`classes` = 0).

        Args:
            classes: Number of classes of the run; 0: none.

        Returns:
            One label per image.
        """
        return self.labels if classes and self.labels is not None else np.zeros(len(self), np.int64)

    def digest(self) -> str:
        """Return a hash of pixels and labels as hexadecimal digits.

        Returns:
            32 digits.

        Examples:
            >>> black, white = (Images(np.full((1, 1, 8, 8), value, np.uint8)) for value in (0, 255))
            >>> black.digest() == black.digest(), black.digest() == white.digest()
            (True, False)
        """
        h = hashlib.blake2b(digest_size=16)
        for a in (self.pixels, self.labels):
            if a is not None:
                h.update(f"{a.dtype}{a.shape}".encode())
                h.update(np.ascontiguousarray(a).data)
        return h.hexdigest()


@dataclass(frozen=True)
class Dataset:
    """Training and test images, and the names of their labels.

    Args:
        name: Name for reports, usually the `data=` setting.
        train: Images to train on.
        test: Held-out images.
        classes: Names of the labels 0, 1, ...
        attributes: Names of the columns of `train.attributes`.
        groups: Names of the groups 0, 1, ...
        split: Origin of the test images: `own` for a separate test set, `content` for a hash of each image.

    Examples:
        >>> from vitrail.data import from_arrays
        >>> data = from_arrays(np.arange(640).reshape(10, 8, 8) % 251, size=8, test_fraction=0.5)
        >>> data.shape, len(data.train) + len(data.test), data.split
        ((1, 8, 8), 10, 'content')
    """

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    split: str = OWN

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images."""
        c, h, w = self.train.pixels.shape[1:]
        return c, h, w

    def without_labels(self) -> Dataset:
        """Return the same data set without labels.

        Returns:
            The data set with the same images and no classes.

        Examples:
            >>> from vitrail.data import load
            >>> digits = load("digits", size=8)
            >>> len(digits.classes), digits.without_labels().classes
            (10, ())
        """
        return replace(self, train=self.train.without_labels(), test=self.test.without_labels(), classes=())
