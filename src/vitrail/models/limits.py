"""What a model file may cost to load, checked before any memory is allocated for it.

A file names the sizes of its network. They are checked by type and range, and the network is built on the meta device,
where tensors have shapes and no memory. Weights in the file must have exactly the names and shapes of that network.
Weights that a seed replaces are bounded by the coded mask or scores that come with the seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.methods.base import Model
from vitrail.utils.errors import Malformed

FREE = 2**26  # bytes of weights, or of one activation, that any file may ask for: 16 million weights
# Bytes of weights for each coded byte. A packed mask has one bit per float32 weight, a factor of 32; trained masks have
# between 0.5 and 1 bit. Masks and scores that entropy coding would make smaller are stored packed (methods/masks.py).
WEIGHTS_PER_BYTE = 128
# Bytes of the largest activation for each byte of coded mask or stored weights, at the 64 images from which BatchNorm's
# statistics are computed; samples are computed in batches of 256 only where their activations fit too. The largest
# ratio that the settings allow is that of generator=sngan, size=128, width=0.5.
ACTIVATION_PER_BYTE = 4096
STATISTICS_BATCH = 64  # images of one batch when BatchNorm's statistics are computed
SAMPLE_BATCH = 256  # images for which noise is drawn at once when sampling
LONGEST_NAME = 1024  # characters of the name of a class
LARGEST_SIDE = 128  # pixels; the largest value of the setting `size`
RANGES: Mapping[str, tuple[int, int]] = {
    "classes": (0, 10**6),
    "width": (1, 4096),
    "z": (1, 2**16),
    "latent": (1, 2**16),
    "style_depth": (1, 64),
    "seed": (0, 2**64 - 1),
}


def check_model(model: Model, names: Sequence[str]) -> int:
    """Refuse a model whose parts do not fit together or would cost more memory than its file justifies.

    Args:
        model: The model as it was read from a file.
        names: The names of its classes.

    Returns:
        The bytes of the tensors that the model is made of.

    Raises:
        Malformed: A field is missing, has another type or is out of range; a name is not a short string; a tensor
            does not fit the network; or the network is too large for its coded mask or scores.
    """
    tree = model.tree
    if not isinstance(tree, dict):
        raise Malformed("it has no table of fields")
    _check_shape(tree)
    _check_names(names)
    if _whole(tree, "classes") > len(names):
        raise Malformed(f"it has {tree['classes']} classes and {len(names)} names of classes")
    try:
        with torch.device("meta"):
            return _CHECKS[model.kind](tree)
    except OverflowError as e:
        raise Malformed(f"its sizes are too large ({e})") from e


def fewest_coded_bytes(tree: Mapping[str, Any]) -> int:
    """The fewest bytes of a coded mask, or of coded scores, with which the network of a tree is loaded."""
    with torch.device("meta"):
        net = seeded_network(tree)
    weights = 4 * sum(p.numel() for p in net.parameters())
    activation = largest_activation(net, tree["shape"][1], tree["classes"])
    return int(max(-(-(weights - FREE) // WEIGHTS_PER_BYTE), -(-(activation - FREE) // ACTIVATION_PER_BYTE), 0))


def seeded_network(tree: Mapping[str, Any]) -> Any:
    """The network that a tree with a seed names; its weights are not drawn yet."""
    from vitrail.nets.generators import build

    return build(tree["generator"], tuple(tree["shape"]), tree["classes"], tree["width"])


def _masked(tree: dict[str, Any]) -> int:
    return _seeded(tree, "mask", bits=1)


def _ensemble(tree: dict[str, Any]) -> int:
    return _seeded(tree, "scores", bits=16)


def _seeded(tree: dict[str, Any], name: str, bits: int) -> int:
    """A seed and coded symbols, of at most these bits for each weight."""
    width, coded = tree["width"], tree[name]
    if isinstance(width, bool) or not isinstance(width, int | float) or not 0 < width <= 8:
        raise Malformed(f"width = {_shown(width)}; a number above 0 and at most 8 is expected")
    _whole(tree, "seed")
    if not isinstance(coded, np.ndarray) or coded.dtype != np.uint8 or coded.ndim != 1:
        raise Malformed(f"its {name} is not a row of bytes")
    weights = sum(p.numel() for p in seeded_network(tree).parameters())
    least, most = fewest_coded_bytes(tree), -(-bits * weights // 8) + 2**18  # with a table of symbols and their counts
    if not least <= len(coded) <= most:
        raise Malformed(
            f"a {name} of {len(coded):,} bytes for a network of {weights:,} weights; {least:,} to {most:,} bytes are "
            "expected: the network is too large for it, or too small"
        )
    return int(coded.nbytes)


def _dcgan(tree: dict[str, Any]) -> int:
    return _dense(tree, [tree["weights"]])


def _mixture(tree: dict[str, Any]) -> int:
    parts, labels = tree["parts"], tree["labels"]
    if not isinstance(parts, list) or not isinstance(labels, list) or not 0 < len(parts) == len(labels):
        raise Malformed("its generators and the labels that they know differ in number")
    return _dense(tree, parts)


def _dense(tree: dict[str, Any], parts: list[Any]) -> int:
    from vitrail.nets.dcgan import DcganGenerator

    net = DcganGenerator(tuple(tree["shape"]), tree["classes"], _whole(tree, "width"), _whole(tree, "z"))
    sizes = [check_tensors(net, weights) for weights in parts]
    _check_activation(net, tree["shape"][1], tree["classes"], min(sizes))
    return sum(sizes)


def _padpaf(tree: dict[str, Any]) -> int:
    from vitrail.nets.content_style import parts_of

    for name in ("width", "latent", "style_depth"):
        _whole(tree, name)
    content, style = parts_of(tree)
    size = check_tensors(content, tree["content"])
    if "style" in tree:
        size += check_tensors(style, tree["style"])
    _check_activation(content, tree["shape"][1], tree["classes"], size)
    return size


def _classifier(tree: dict[str, Any]) -> int:
    from vitrail.nets.classifier import classifier

    return check_tensors(classifier(tree["shape"][0], tree["classes"], tree.get("norm", "batch")), tree["weights"])


_CHECKS = {
    "masked": _masked,
    "ensemble": _ensemble,
    "dcgan": _dcgan,
    "mixture": _mixture,
    "padpaf": _padpaf,
    "classifier": _classifier,
}


def check_tensors(net: nn.Module, weights: Any) -> int:
    """Refuse tensors that are not exactly those of a network on the meta device; returns their bytes."""
    if not isinstance(weights, dict) or not all(isinstance(t, Tensor) for t in weights.values()):
        raise Malformed("its weights are not a table of tensors")
    expected = {name: tuple(t.shape) for name, t in net.state_dict().items()}
    found = {name: tuple(t.shape) for name, t in weights.items()}
    if found != expected:
        name = min(map(str, expected.items() ^ found.items()))
        raise Malformed(f"its weights are not those of the network that it names, for example {name[:100]}")
    return sum(t.nbytes for t in weights.values())


def largest_activation(net: nn.Module, side: int, classes: int) -> int:
    """The bytes of the largest tensor that a generator computes for one batch of square images of this side.

    It follows from the layers, for a pass on the meta device would import two seconds' worth of torch.
    """
    from vitrail.nets.content_style import Content
    from vitrail.nets.generators import ResNet

    if isinstance(net, ResNet):  # each block doubles 4x4 before its first convolution
        blocks: Any = net.blocks
        maps = [(max(b.conv1.in_channels, b.conv1.out_channels), 8 << i) for i, b in enumerate(blocks)]
        maps.append((net.last.out_channels, side))
    elif isinstance(net, Content):
        maps = [(max(net.features, net.last.out_channels), side)]
    else:  # transposed convolutions: 4x4, then twice as large each time
        layers = [m for m in net.modules() if isinstance(m, nn.ConvTranspose2d)]
        maps = [(m.out_channels, 4 << i) for i, m in enumerate(layers)]
    return STATISTICS_BATCH * int(max(8 * classes, *(4 * channels * n * n for channels, n in maps)))


def images_per_pass(net: nn.Module, side: int, classes: int, stored: int) -> int:
    """How many images a generator computes at once when sampling: fewer than 256 where these would exceed the limit."""
    from vitrail.nets.content_style import ContentStyleGenerator as Styled
    from vitrail.nets.masked import Ensemble
    from vitrail.nets.mixture import Mixture

    if isinstance(net, Ensemble):
        net = net.masked.net
    elif isinstance(net, Mixture):
        parts = list(net.parts)
        net, stored = parts[0], stored // len(parts)
    elif isinstance(net, Styled):
        net = net.content
    needed = largest_activation(net, side, classes) * SAMPLE_BATCH // STATISTICS_BATCH
    return SAMPLE_BATCH if needed <= FREE + ACTIVATION_PER_BYTE * stored else STATISTICS_BATCH


def _check_activation(net: nn.Module, side: int, classes: int, stored: int) -> None:
    """Refuse a network on the meta device whose feature maps are out of proportion to the bytes that are stored."""
    needed = largest_activation(net, side, classes)
    if needed > FREE + ACTIVATION_PER_BYTE * stored:
        raise Malformed(
            f"its network is too large for its file: it needs {needed:,} bytes for one feature map of "
            f"{STATISTICS_BATCH} images, and only {stored:,} bytes of it are stored"
        )


def _check_shape(tree: dict[str, Any]) -> None:
    shape = tree["shape"]
    whole = isinstance(shape, list | tuple) and len(shape) == 3 and all(type(n) is int for n in shape)
    if not whole or not (1 <= shape[0] <= 4 and 1 <= shape[1] == shape[2] <= LARGEST_SIDE):
        raise Malformed(
            f"shape = {_shown(shape)}; 1 to 4 channels and equal sides of at most {LARGEST_SIDE} pixels are expected"
        )


def _check_names(names: Any) -> None:
    if not isinstance(names, list | tuple):
        raise Malformed(f"its names of classes are {_shown(names)}; a list of strings is expected")
    for name in names:
        if not isinstance(name, str) or len(name) > LONGEST_NAME:
            raise Malformed(
                f"a name of a class is {_shown(name)}; a string of at most {LONGEST_NAME} characters is expected"
            )


def _whole(tree: Mapping[str, Any], name: str) -> int:
    value, (least, most) = tree[name], RANGES[name]
    if type(value) is not int or not least <= value <= most:
        raise Malformed(f"{name} = {_shown(value)}; an integer from {least} to {most} is expected")
    return value


def _shown(value: Any) -> str:
    """A value of a file, short and free of what would steer a terminal."""
    return ascii(value)[:60]
