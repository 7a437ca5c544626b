"""Perceptual features ψ: ReLU outputs of a frozen network in the style of VGG (Simonyan & Zisserman 2015).

Two networks of our own come with the package, each trained on one public data set alone, so that there is
always a ψ that has never seen the data. VGG19 is the ψ of the PRISM paper; its weights are fetched once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitrail.nets.pixels import differentiates, resize, widen
from vitrail.nets.pretrained import find_weights, read_tensors, take
from vitrail.nets.winograd import Tile, convolve, tile_for, transform
from vitrail.utils.errors import VitrailError
from vitrail.utils.paths import data_home as default_home

WEIGHTS = Path(__file__).parent / "weights"
VGG19_SMALLER = "vgg19_normalised_features_fp16.safetensors"  # convolutions alone, scaled per channel
VGG19_URL = "https://download.pytorch.org/models/vgg19-dcbb9e9d.pth"  # torchvision's

FEATURES: dict[str, str] = {
    "vitrail-fashion": "small network of our own (7 layers, 0.4 MB), trained on Fashion-MNIST alone",
    "vitrail-cifar": "small network of our own (7 layers, 0.4 MB), trained on 10,000 of CIFAR-10 alone",
    "vgg19": "VGG19 (16 layers, 20 million weights, fetched once), trained on ImageNet",
}
TRAINED_ON = {"vitrail-fashion": "fashion-mnist", "vitrail-cifar": "cifar10", "vgg19": "imagenet"}


@dataclass(frozen=True)
class LayerPlan:
    """Widths of the 3x3 convolutions, block by block; the pool between them; how pictures are normalised."""

    blocks: tuple[tuple[int, ...], ...]
    pool: str  # "average" or "max"
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)  # in [-1, 1]
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of every layer."""
        return tuple(width for block in self.blocks for width in block)

    @property
    def opens(self) -> tuple[int, ...]:
        """The layers that stand behind a pool."""
        return tuple(sum(map(len, self.blocks[:b])) for b in range(1, len(self.blocks)))

    @property
    def places(self) -> tuple[int, ...]:
        """Where each convolution stands in torchvision's list, which counts ReLUs and pools too."""
        return tuple(2 * layer + sum(o <= layer for o in self.opens) for layer in range(len(self.widths)))


# Average pooling gives every pixel a gradient. ImageNet's mean and std are moved from [0, 1] to [-1, 1].
SMALL = LayerPlan(((16,), (32, 32), (64, 64), (96, 96)), "average")
VGG19 = LayerPlan(
    ((64, 64), (128, 128), (256,) * 4, (512,) * 4, (512,) * 4),
    "max",
    mean=(2 * 0.485 - 1, 2 * 0.456 - 1, 2 * 0.406 - 1),
    std=(2 * 0.229, 2 * 0.224, 2 * 0.225),
)


class Features(nn.Module):
    """ψ, frozen: pictures in [-1, 1], grey or colour, to the ReLU outputs of the chosen layers (or all).

    >>> psi = load_features("vitrail-fashion")
    >>> x = torch.zeros(2, 1, 32, 32)
    >>> [tuple(y.shape[1:]) for y in psi(x)][-1], tuple(psi.flat(x).shape)
    ((96, 4, 4), (2, 44032))
    >>> psi.layers = (0, 2)
    >>> psi.dim((1, 32, 32))
    24576
    """

    mean: Tensor
    std: Tensor

    def __init__(self, name: str, plan: LayerPlan, layers: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.name, self.plan, self.layers = name, plan, layers
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise((3, *plan.widths)))
        self.register_buffer("mean", torch.tensor(plan.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(plan.std).view(3, 1, 1), persistent=False)
        self._transformed: dict[tuple[int, Tile], tuple[tuple[int, int], Tensor]] = {}
        self.eval().requires_grad_(False)

    @property
    def layers(self) -> tuple[int, ...]:
        """Which ReLU outputs are given, from 0; nothing beyond the last of them is computed."""
        return self._layers

    @layers.setter
    def layers(self, layers: tuple[int, ...] | None) -> None:
        depth = len(self.plan.widths)
        chosen = tuple(range(depth)) if layers is None else tuple(sorted(set(layers)))
        if not chosen or chosen[0] < 0 or chosen[-1] >= depth:
            raise VitrailError(f"layers {layers} of {self.name}: give one or more of 0 to {depth - 1}")
        self._layers = chosen

    def train(self, mode: bool = True) -> Features:  # noqa: ARG002
        """Stay in evaluation mode: ψ is never trained."""
        return super().train(False)

    def forward(self, x: Tensor) -> list[Tensor]:
        """The chosen layers' outputs, each (n, channels, height, width), first layer first."""
        if x.ndim != 4 or x.shape[1] not in (1, 3):
            raise VitrailError(f"features of an array {tuple(x.shape)}: give pictures (n, 1 or 3, height, width)")
        y = (x.expand(-1, 3, -1, -1) - self.mean) / self.std
        if differentiates(x):
            return self.pixels_first(y)
        outputs = []
        for layer, conv in enumerate(self.convs[: self.layers[-1] + 1]):
            y = functional.relu(conv(halve(y, self.plan.pool) if layer in self.plan.opens else y))
            if layer in self.layers:
                outputs.append(y)
        return outputs

    def pixels_first(self, x: Tensor) -> list[Tensor]:
        """The same, faster where it is differentiated; in memory the outputs are (h, w, n, c)."""
        y = widen(x, self.weight(0), self.bias(0))
        outputs = [y]
        for layer in range(1, self.layers[-1] + 1):
            if layer in self.plan.opens:
                y = resize(y, lambda t: halve(t, self.plan.pool))
            tile = tile_for(*y.shape[:2])
            y = convolve(y, self.transformed(layer, tile), tile, self.bias(layer))
            outputs.append(y)
        return [outputs[layer].permute(2, 3, 0, 1) for layer in self.layers]

    def transformed(self, layer: int, tile: Tile) -> Tensor:
        """A layer's weight for `convolve`, made anew only when the weight is another."""
        weight = self.weight(layer)
        now = (weight.data_ptr(), weight._version)
        made_of, U = self._transformed.get((layer, tile), (None, weight))
        if made_of != now:
            U = transform(weight, tile)
            self._transformed[layer, tile] = now, U
        return U

    def weight(self, layer: int) -> Tensor:
        """A layer's weight."""
        return self.get_parameter(f"convs.{layer}.weight")

    def bias(self, layer: int) -> Tensor:
        """A layer's bias."""
        return self.get_parameter(f"convs.{layer}.bias")

    def flat(self, x: Tensor) -> Tensor:
        """The same as one row a picture, positions kept: (n, dim)."""
        return torch.cat([y.flatten(1) for y in self(x)], dim=1)

    def dim(self, shape: tuple[int, ...]) -> int:
        """How many features a picture of this shape, (..., height, width), has."""
        (h, w), total = shape[-2:], 0
        for layer, width in enumerate(self.plan.widths):
            if layer in self.plan.opens:
                h, w = (h + 1) // 2, (w + 1) // 2
            total += width * h * w * (layer in self.layers)
        return total


def plan_of(name: str) -> LayerPlan:
    """How a network is built."""
    return VGG19 if name == "vgg19" else SMALL


def parse_layers(name: str, text: str) -> tuple[int, ...] | None:
    """Which layers of a network a setting names: all, or numbers from 0 such as 1,3,7.

    >>> parse_layers("vgg19", "all"), parse_layers("vgg19", "3,0")
    (None, (0, 3))
    """
    if text == "all":
        return None
    depth = len(plan_of(name).widths)
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) < depth for word in words):
        raise VitrailError(f"layers={text}: give all, or numbers from 0 to {depth - 1} for {name}, such as layers=0,2")
    return tuple(sorted({int(word) for word in words}))


def halve(y: Tensor, pool: str) -> Tensor:
    """Half the size, an odd one rounded up, so that no picture is too small: 1x1 stays."""
    return (functional.avg_pool2d if pool == "average" else functional.max_pool2d)(y, 2, ceil_mode=True)


# Words that tell of a data set in a source's name; CINIC-10 holds CIFAR-10's pictures.
_WORDS = {"fashion-mnist": ("fashion", "fmnist"), "cifar10": ("cifar", "cinic"), "imagenet": ("imagenet",)}


def was_trained_on(features: str, data_name: str) -> bool:
    """Whether a ψ was trained on this data, as far as the data's name tells.

    >>> saw("vitrail-fashion", "hf:zalando/fashion_mnist"), saw("vitrail-fashion", "mnist")
    (True, False)
    """
    plain = data_name.lower().replace("-", "").replace("_", "")
    return any(word in plain for word in _WORDS[TRAINED_ON[features]])


def choose_features(data_name: str) -> str:
    """The ψ for a data source, never one trained on it.

    Fashion-MNIST and the colour sources take CIFAR-10's, all others Fashion-MNIST's. Only the name is known
    of hf:, folder: and npz: sources; one that tells of both data sets takes VGG19.

    >>> choose_features("mnist5k"), choose_features("fashion-mnist"), choose_features("cifar10:1")
    ('vitrail-fashion', 'vitrail-cifar', 'vitrail-fashion')
    """
    fashion, cifar = was_trained_on("vitrail-fashion", data_name), was_trained_on("vitrail-cifar", data_name)
    if fashion and cifar:
        return "vgg19"
    colour = any(word in data_name.lower() for word in ("svhn", "celeb"))
    return "vitrail-cifar" if fashion or (colour and not cifar) else "vitrail-fashion"


def load_features(name: str, device: str | torch.device = "cpu", home: Path | None = None) -> Features:
    """The feature network of this name, one of FEATURES; `home` is where fetched weights are kept."""
    if name not in FEATURES:
        raise VitrailError(f"features={name}: there is no such network; choose one of {', '.join(FEATURES)}")
    plan, path = SMALL, WEIGHTS / f"{name}.safetensors"
    if name == "vgg19":
        plan, path = VGG19, find_weights("features=vgg19", (VGG19_SMALLER,), VGG19_URL, home or default_home())
    psi, tensors = Features(name, plan), read_tensors(path)
    for place, conv in zip(plan.places, psi.convs, strict=True):
        for part, own in conv.named_parameters():
            own.copy_(take(tensors, f"features.{place}.{part}", own.shape, path))
    return psi.to(device)
