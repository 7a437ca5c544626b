"""Hold-out split of data without a test set: by a hash of each image.

Whether an image is held out depends only on its pixels, not on its position, file name or label or on other images. So
adding or removing an image does not move others, and duplicates are on the same side. Of n distinct images,
Binomial(n, fraction) are held out.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitrail.utils.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.data.dataset import Dataset, Images

# A constant, not the seed of the run: the held-out images are the same in all runs, so that a run is never evaluated
# on images that the run it started from was trained on.
_KEY = b"vitrail held-out"

OWN = "own"  # the data set has a separate test set
CONTENT = "content"  # by a hash of each image; version 0.1.0 split by position and recorded nothing


def check_test_fraction(test_fraction: float) -> None:
    """Raise VitrailError if a test fraction is not in [0, 1)."""
    if not 0 <= test_fraction < 1:
        raise VitrailError(f"test_fraction={test_fraction}: must be at least 0 and less than 1, such as 0.2")


def hold_out(images: Images, fraction: float) -> tuple[Images, Images]:
    """Split images into training and held-out images by a hash of each image.

    Args:
        images: All images, decoded and resized: at another size, other images are held out.
        fraction: Probability that an image is held out.

    Returns:
        The training images and the held-out images, each in their original order.

    Raises:
        VitrailError: If no image is left to train on.
    """
    n = len(images)
    test = _hashes(images.pixels) < np.uint64(int(fraction * 2.0**64))
    if n and test.all():
        raise VitrailError(
            f"test_fraction={fraction}: leaves none of {n} images to train on; use a smaller fraction. "
            "Each image is held out with this probability, by a hash of its content"
        )
    return images.take(np.flatnonzero(~test)), images.take(np.flatnonzero(test))


def not_held_out(data: Dataset, recorded: str | None) -> str:
    """Return why the test images of `data` may not be held out for a model that was trained on it; empty if they are.

    Args:
        data: The data that the model was trained on, as this version splits it.
        recorded: The split in the model file or checkpoint; None or empty if it records none.
    """
    if data.split == OWN or recorded:
        return ""
    return (
        "not held out, because the model, or one it started from, is of version 0.1.0, which split the data by "
        "position: it may have been trained on some of these images"
    )


def _hashes(pixels: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return a keyed 64-bit hash of each image."""
    prefix = blake2b(f"{pixels.dtype}{pixels.shape[1:]}".encode(), key=_KEY, digest_size=8)
    digests = bytearray()
    for image in np.ascontiguousarray(pixels):
        one = prefix.copy()
        one.update(image.data)
        digests += one.digest()
    return np.frombuffer(bytes(digests), "<u8").astype(np.uint64)
