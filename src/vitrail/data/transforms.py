"""Image transforms by name, and clients as domains: each client's images pass through one transform (PaDPaF).

NumPy and torch are imported on first use, so that the registry loads fast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from vitrail.utils.errors import VitrailError
from vitrail.utils.registry import Registry

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from vitrail.data.dataset import Dataset, Images
    from vitrail.data.partitions import Partition
    from vitrail.utils.rng import Rng

    Transform = Callable[[Tensor, np.random.Generator], Tensor]

BATCH = 4096
_HERE = "vitrail.data.transform_functions"

TRANSFORMS: Registry[Transform] = Registry(
    "transform",
    "vitrail.transforms",
    {
        "zoom-in": (f"{_HERE}:zoom_in", "enlarge the central 22 of 32 pixels"),
        "zoom-out": (f"{_HERE}:zoom_out", "shrink to 4/7 with a black border"),
        "invert": (f"{_HERE}:invert", "invert all values"),
        "blur": (f"{_HERE}:blur", "blur by a Gaussian of random width"),
        "flip-horizontal": (f"{_HERE}:flip_horizontal", "exchange left and right"),
        "flip-vertical": (f"{_HERE}:flip_vertical", "exchange top and bottom"),
        "rotate": (f"{_HERE}:rotate", "rotate by up to 40 degrees"),
        "brightness": (f"{_HERE}:brightness", "multiply by a random factor"),
        "affine": (f"{_HERE}:affine", "rotate, shrink and translate at random"),
        "solarize": (f"{_HERE}:solarize", "invert bright values"),
        "erase": (f"{_HERE}:erase", "fill a random rectangle with grey"),
        "grayscale": (f"{_HERE}:grayscale", "set all channels to the luma"),
        "perspective": (f"{_HERE}:perspective", "move the corners inwards at random"),
        "colour-1": (f"{_HERE}:colour_1", "shift and scale each channel at random"),
        "colour-2": (f"{_HERE}:colour_2", "colour-1, normalized once more"),
    },
)
"""Transforms by name. A transform is a function of images, a float32 tensor (n, channels, height, width) in [0, 1], and
a NumPy random generator; it returns images of the same shape.

Register your own with the decorator `vitrail.register_transform` (`TRANSFORMS.register`) or with an entry point in the
group `vitrail.transforms`. `partition=domains:NAME,...` then gives it to a client.

Examples:
    >>> import numpy as np
    >>> from torch import Tensor
    >>> from vitrail.data import TRANSFORMS, parse_partition
    >>> @TRANSFORMS.register("darken", "multiply by 1/2")
    ... def darken(images: Tensor, rng: np.random.Generator) -> Tensor:
    ...     return images / 2
    >>> parse_partition("domains:invert,darken").domains
    ('invert', 'darken')
"""

DOMAINS: dict[str, tuple[str, ...]] = {
    "mnist8": ("zoom-in", "zoom-out", "invert", "blur", "flip-horizontal", "flip-vertical", "rotate", "brightness"),
    "cifar": (
        "zoom-in", "invert", "blur", "grayscale", "flip-vertical", "brightness", "perspective", "solarize",
        "colour-1", "colour-2",
    ),
    "new3": ("affine", "solarize", "erase"),
}  # fmt: skip
"""Named lists of transforms, one per client."""


def apply_transform(images: Images, domain: str, rng: Rng) -> Images:
    """Apply a transform to images.

    Args:
        images: Any images.
        domain: Name of the transform.
        rng: Parent of the random stream; the transform draws from the child of its name.

    Returns:
        The transformed images with the same labels, attributes and groups.

    Raises:
        VitrailError: If the transform returns anything but images of the same shape.

    Examples:
        >>> import numpy as np
        >>> from vitrail.data import Images
        >>> from vitrail.utils.rng import Rng
        >>> apply_transform(Images(np.full((1, 1, 2, 2), 5, np.uint8)), "invert", Rng((0,))).pixels.max()
        np.uint8(250)
    """
    import numpy as np
    import torch

    draw, apply = rng.child(domain).numpy(), TRANSFORMS[domain]
    done = [np.empty((0, *images.pixels.shape[1:]), np.uint8)]
    for at in range(0, len(images), BATCH):
        x = torch.from_numpy(images.pixels[at : at + BATCH].astype(np.float32)) / 255
        made = apply(x, draw)
        if not hasattr(made, "__array__") or made.shape != x.shape:
            given = f"shape {tuple(made.shape)}" if hasattr(made, "shape") else type(made).__name__
            raise VitrailError(
                f"transform {domain}: it returned {given}; it must return a tensor or array of shape {tuple(x.shape)}"
            )
        done.append((torch.as_tensor(np.ascontiguousarray(made)).clamp(0, 1) * 255).round().byte().numpy())
    return replace(images, pixels=np.concatenate(done))


def transformed_test_images(data: Dataset, domain: str, seed: int) -> Images:
    """Return the test images after a client's transform, as drawn in a run with this seed."""
    from vitrail.utils.rng import Rng

    return apply_transform(data.test, domain, Rng((seed,)).child("domains", "test"))


def apply_client_transforms(data: Dataset, shares: Partition, rng: Rng) -> Dataset:
    """Apply each client's transform to its training images; the test images stay unchanged.

    Args:
        data: The data set.
        shares: A partition `domains:...`; its setting has the transform of each client.
        rng: Parent of the random streams.
    """
    import numpy as np

    from vitrail.data.specs import parse_partition

    pixels = np.array(data.train.pixels)
    for domain, own in zip(parse_partition(shares.spec).domains, shares.indices, strict=True):
        pixels[own] = apply_transform(data.train.take(own), domain, rng.child("train")).pixels
    return replace(data, train=replace(data.train, pixels=pixels))
