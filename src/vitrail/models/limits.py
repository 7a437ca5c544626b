"""Limits on the memory that a model file may need, relative to its size.

A file names the sizes of its network. Networks are built on the meta device, where tensors have shapes and no memory.
Weights in the file must have exactly the names and shapes of that network; weights that a seed replaces are bounded by
the coded mask or scores that come with the seed. Model kinds (models/kinds/) call these functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from vitrail.utils.errors import Malformed

FREE = 2**26  # bytes of weights, or of one activation, that any file may need: 16 million weights
# Bytes of weights per coded byte. A packed mask has one bit per float32 weight, a factor of 32; trained masks have
# between 0.5 and 1 bit. Masks and scores that entropy coding would make smaller are stored packed.
WEIGHTS_PER_BYTE = 128
# Bytes of the largest activation per byte of coded mask or stored weights, for the 64 images from which BatchNorm's
# statistics are computed; samples are computed in batches of 256 only where their activations fit too. The largest
# ratio that the settings allow is that of generator=sngan, size=128, width=0.5.
ACTIVATION_PER_BYTE = 4096
STATISTICS_BATCH = 64  # images per batch when BatchNorm's statistics are computed
SAMPLE_BATCH = 256  # images for which noise is drawn at once when sampling
RANGES: Mapping[str, tuple[int, int]] = {
    "classes": (0, 10**6),
    "width": (1, 4096),
    "z": (1, 2**16),
    "seed": (0, 2**64 - 1),
}


def check_integer(tree: Mapping[str, Any], name: str, limits: tuple[int, int] | None = None) -> int:
    """Return an integer field of a model's tree if it is in its range.

    Args:
        tree: The tree of a model.
        name: The name of the field.
        limits: Smallest and largest value; by default those of `RANGES`.

    Raises:
        Malformed: If the field is not an integer or is out of range.
        KeyError: If the field is missing.

    Examples:
        >>> check_integer({"width": 32}, "width")
        32
    """
    value, (least, most) = tree[name], limits or RANGES[name]
    if type(value) is not int or not least <= value <= most:
        raise Malformed(f"{name} = {shown(value)}; expected an integer from {least} to {most}")
    return value


def shown(value: Any) -> str:
    """Return a value of a file as short text without control characters."""
    return ascii(value)[:60]


def check_tensors(expected: Mapping[str, Tensor], weights: Any) -> int:
    """Check that tensors of a file are exactly those of a network.

    Args:
        expected: The network's tensors by name, on the meta device.
        weights: Tensors by name, of the file.

    Returns:
        The bytes of the tensors.

    Raises:
        Malformed: If a tensor is missing, is not of this network or has another shape.
    """
    if not isinstance(weights, dict) or not all(isinstance(t, Tensor) for t in weights.values()):
        raise Malformed("its weights are not a table of tensors")
    shapes, found = ({name: tuple(t.shape) for name, t in of.items()} for of in (expected, weights))
    if found != shapes:
        name = min(map(str, shapes.items() ^ found.items()))
        raise Malformed(f"its weights are not those of the network that it names, for example {name[:100]}")
    return sum(t.nbytes for t in weights.values())


def check_activation(net: nn.Module, side: int, classes: int, stored: int) -> None:
    """Check that a network's feature maps are in proportion to the bytes stored for it.

    Args:
        net: The network, on the meta device.
        side: Height and width of the images in pixels.
        classes: Number of classes; 0 without labels.
        stored: Bytes of the tensors in the file.

    Raises:
        Malformed: If its largest feature map needs more memory than the file justifies.
    """
    needed = largest_activation(net, side, classes)
    if needed > FREE + ACTIVATION_PER_BYTE * stored:
        raise Malformed(
            f"its network is too large for its file: it needs {needed:,} bytes for one feature map of "
            f"{STATISTICS_BATCH} images, and only {stored:,} bytes of it are stored"
        )


def largest_activation(net: Any, side: int, classes: int) -> int:
    """Return the bytes of the largest tensor that a generator computes for a batch of 64 square images.

    A generator may have a method `feature_maps(side)`, which returns (channels, height) of its largest feature maps.
    Others are run on the meta device, which takes two seconds the first time because torch imports its symbolic shapes.
    """
    if hasattr(net, "feature_maps"):
        maps = net.feature_maps(side)
        return STATISTICS_BATCH * int(max(8 * classes, *(4 * channels * n * n for channels, n in maps)))
    state = {name: t.to("meta") for name, t in (*net.named_parameters(), *net.named_buffers())}
    z = torch.empty(STATISTICS_BATCH, net.z, device="meta")
    y = torch.zeros(STATISTICS_BATCH, dtype=torch.int64, device="meta") if classes else None
    largest = _LargestTensor()  # type: ignore[no-untyped-call]
    with torch.no_grad(), largest:
        torch.func.functional_call(net, state, (z, y))
    return largest.nbytes


class _LargestTensor(TorchDispatchMode):
    """Record the bytes of the largest tensor that any operation returns."""

    nbytes: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else [out]:
            self.nbytes = max(self.nbytes, t.nbytes if isinstance(t, Tensor) else 0)
        return out


def images_per_pass(net: nn.Module, side: int, classes: int, stored: int) -> int:
    """Return how many images a generator computes at once: 64 where the activations of 256 would exceed the limit."""
    needed = largest_activation(net, side, classes) * SAMPLE_BATCH // STATISTICS_BATCH
    return SAMPLE_BATCH if needed <= FREE + ACTIVATION_PER_BYTE * stored else STATISTICS_BATCH
