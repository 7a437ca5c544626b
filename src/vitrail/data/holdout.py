"""The hold-out split of data without a test set of its own.

Whether an image is held out depends on its own pixels only: not on its position, file name, label or group, nor on any
other image. So adding, removing or replacing one image changes the side of no other image, and duplicates are always
on the same side. The share is met on average: of n distinct images, Binomial(n, share) are held out.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitrail.utils.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.data.dataset import Dataset, Images

# A constant, and not the run's seed: the held-out images are the same in every run, so that a run is never
# measured on what an earlier one, from which it started, was trained on.
_KEY = b"vitrail held-out"

OWN = "own"  # the data set has a test set of its own
CONTENT = "content"  # held out by a hash of each image; version 0.1.0 held images out by position and recorded nothing


def check_share(test_fraction: float) -> None:
    """Refuse a share that leaves nothing to train on."""
    if not 0 <= test_fraction < 1:
        raise VitrailError(f"test_fraction={test_fraction}: must be at least 0 and less than 1, such as 0.2")


def hold_out(pictures: Images, share: float) -> tuple[Images, Images]:
    """Split images into training and held-out ones by a hash of each image.

    Args:
        pictures: All images, decoded and resized: at another size, other images are held out.
        share: The probability that an image is held out.

    Returns:
        The training images and the held-out images, each in their original order.

    Raises:
        VitrailError: If no image is left to train on.
    """
    n = len(pictures)
    test = _hashes(pictures.pixels) < np.uint64(int(share * 2.0**64))
    if n and test.all():
        raise VitrailError(
            f"test_fraction={share}: leaves none of {n} pictures to train on; hold out less. "
            "Each picture is held out with this probability, by a hash of its content"
        )
    return pictures.take(np.flatnonzero(~test)), pictures.take(np.flatnonzero(test))


def not_held_out(data: Dataset, recorded: str | None) -> str:
    """Return why test images of `data` may not be held out for a model that was trained on it; empty if they are.

    Args:
        data: The data that the model was trained on, as this version splits it.
        recorded: The split in the model file or checkpoint; None or empty if it records none.
    """
    if data.split == OWN or recorded:
        return ""
    return (
        "not held out, because the model, or one it started from, is of version 0.1.0, which split the data by "
        "position: it may have been trained on some of these pictures"
    )


def _hashes(pixels: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """A keyed 64-bit hash of each image."""
    prefix = blake2b(f"{pixels.dtype}{pixels.shape[1:]}".encode(), key=_KEY, digest_size=8)
    digests = bytearray()
    for image in np.ascontiguousarray(pixels):
        one = prefix.copy()
        one.update(image.data)
        digests += one.digest()
    return np.frombuffer(bytes(digests), "<u8").astype(np.uint64)
