"""The generator of PaDPaF in two separate modules, content and style: x = G^c(z^c, G^s(z^s), y) (Appendix B).

Content is the convolutions of a ResNet (Gulrajani et al. 2017). Style enters only through conditional BatchNorm (De
Vries et al. 2017), whose maps belong to the style; with labels, style conditions half of the channels, the label the
others. BatchNorm's statistics belong to neither: batch statistics in training, calibrated with noise afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.nets.generators import num_doublings, upsample_nearest
from vitrail.nets.resampling import convolution_of_double
from vitrail.utils.rng import Rng


class StyleMap(nn.Linear):
    """γ and β of some channels from a style vector; initially near 1 and 0."""

    def init_weights(self, draw: torch.Generator) -> None:
        nn.init.normal_(self.weight, 0, 0.02, generator=draw)
        self.bias.data[: len(self.bias) // 2] = 1
        self.bias.data[len(self.bias) // 2 :] = 0


class LabelMap(nn.Embedding):
    """γ and β of some channels from a label; initially near 1, and 0."""

    def init_weights(self, draw: torch.Generator) -> None:
        half = self.embedding_dim // 2
        nn.init.normal_(self.weight[:, :half], 1, 0.02, generator=draw)
        nn.init.zeros_(self.weight[:, half:])


class EqualizedLinear(nn.Linear):
    """Mapping layer of StyleGAN: equalized learning rate with a multiplier of 0.1 (Karras et al. 2019)."""

    lr_multiplier = 0.1

    def init_weights(self, draw: torch.Generator) -> None:
        nn.init.normal_(self.weight, 0, 1 / self.lr_multiplier, generator=draw)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.lr_multiplier * math.sqrt(2 / self.in_features)
        return F.leaky_relu(F.linear(x, self.weight * scale, self.bias * self.lr_multiplier), 0.2)


def label_maps(features: int, classes: int, layers: int) -> nn.ModuleList:
    """Create the label half of every conditional BatchNorm; empty without labels."""
    return nn.ModuleList(LabelMap(classes, 2 * (features - features // 2)) for _ in range(layers if classes else 0))


class Content(nn.Module):
    """G^c without BatchNorm: the federated part of the generator.

    Args:
        shape: Channels, height and width of an image.
        classes: Number of labels; 0 without.
        features: Channels of every layer.
        latent: Dimension of z^c.
        labelled: Whether the maps from labels belong to content, not to style.
    """

    def __init__(
        self, shape: tuple[int, int, int], classes: int, features: int, latent: int, labelled: bool = False
    ) -> None:
        super().__init__()
        n = num_doublings(shape[1])
        self.features, self.latent, self.classes, self.layers = features, latent, classes, 2 * n + 1
        self.dense = nn.Linear(latent, 16 * features)
        self.convolutions = nn.ModuleList(nn.Conv2d(features, features, 3, padding=1) for _ in range(2 * n))
        self.last = nn.Conv2d(features, shape[0], 3, padding=1)
        self.labels = label_maps(features, classes if labelled else 0, self.layers)

    def forward(self, z: Tensor, norm: Callable[[int, Tensor], Tensor]) -> Tensor:
        h = self.dense(z).view(-1, self.features, 4, 4).contiguous(memory_format=torch.channels_last)  # faster on a CPU
        for k in range(0, self.layers - 1, 2):
            inner = convolution_of_double(F.relu(norm(k, h)), cast(nn.Conv2d, self.convolutions[k]))
            h = upsample_nearest(h) + self.convolutions[k + 1](F.relu(norm(k + 1, inner)))
        return torch.tanh(self.last(F.relu(norm(self.layers - 1, h))))

    def feature_maps(self, side: int) -> list[tuple[int, int]]:
        """Return (channels, height) of the largest feature map."""
        return [(max(self.features, self.last.out_channels), side)]


class Style(nn.Module):
    """The private part of the generator: the vectorizer G^s: z^s -> s, and the maps from s to BatchNorm's γ and β.

    Args:
        content: The content module that it belongs to; only its sizes are used.
        depth: Layers of the vectorizer.
    """

    def __init__(self, content: Content, depth: int) -> None:
        super().__init__()
        f, latent, classes = content.features, content.latent, content.classes
        self.vectorizer = nn.Sequential(*(EqualizedLinear(latent, latent) for _ in range(depth)))
        styled = f // 2 if classes else f
        self.maps = nn.ModuleList(StyleMap(latent, 2 * styled) for _ in range(content.layers))
        self.labels = label_maps(f, 0 if len(content.labels) else classes, content.layers)

    def forward(self, z: Tensor) -> Tensor:
        return self.vectorizer(z * torch.rsqrt(z.square().mean(1, keepdim=True) + 1e-8))


def build_content_and_style(tree: Mapping[str, Any]) -> tuple[Content, Style]:
    """Create untrained content and style with the sizes in the tree of a model file."""
    sizes = tree["width"], tree["latent"], tree["label_maps"] == "federated"
    content = Content(tuple(tree["shape"]), tree["classes"], *sizes)
    return content, Style(content, tree["style_depth"])


class ContentStyleGenerator(nn.Module):
    """Content and one client's style as a generator of z = (z^c, z^s); without style γ = 1, β = 0 and z = z^c."""

    def __init__(self, content: Content, style: Style | None) -> None:
        super().__init__()
        self.content, self.style, self.latent = content, style, content.latent
        self.z = content.latent * (1 if style is None else 2)
        self.norms = nn.ModuleList(nn.BatchNorm2d(content.features, affine=False) for _ in range(content.layers))

    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        style = self.style
        s = None if style is None else style(z[:, self.latent :])
        maps = self.content.labels if style is None or len(self.content.labels) else style.labels
        f, classes = self.content.features, self.content.classes
        styled = f // 2 if classes else f

        def norm(k: int, h: Tensor) -> Tensor:
            by_style = style.maps[k](s) if style is not None else identity_map(h, styled)
            by_label = maps[k](y) if len(maps) and y is not None else identity_map(h, f - styled)
            halves = zip(by_style.chunk(2, 1), by_label.chunk(2, 1), strict=True)
            gamma, beta = (torch.cat(both, 1)[:, :, None, None] for both in halves)
            return torch.addcmul(beta, gamma, self.norms[k](h))

        return self.content(z[:, : self.latent], norm)


def identity_map(h: Tensor, channels: int) -> Tensor:
    """Return γ = 1 and β = 0 for some channels of each image."""
    n = h.shape[0]  # len(h) would fix the batch size in an ONNX export
    return torch.cat([h.new_ones(n, channels), h.new_zeros(n, channels)], 1)


class FixedLatentGenerator(nn.Module):
    """A personal generator with the same content, or the same style, for all images.

    Args:
        net: A generator with style.
        content: Seed of z^c; None: z^c is not fixed.
        style: Seed of z^s; None: z^s is not fixed.
    """

    def __init__(self, net: ContentStyleGenerator, content: int | None, style: int | None) -> None:
        super().__init__()
        self.net, self.z = net, net.z
        self.seeds = {"content": (content, slice(0, net.latent)), "style": (style, slice(net.latent, net.z))}

    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        z = z.clone()
        for name, (seed, where) in self.seeds.items():
            if seed is not None:
                z[:, where] = torch.randn(self.net.latent, generator=Rng((seed,)).child(name).torch())
        return self.net(z, y)


def initialise(net: nn.Module, draw: torch.Generator) -> nn.Module:
    """Initialize as the published code: Xavier for convolutions and linear layers; γ near 1, β = 0 in BatchNorm."""
    with torch.no_grad():
        for m in net.modules():
            if isinstance(m, StyleMap | LabelMap | EqualizedLinear):
                m.init_weights(draw)
            elif isinstance(m, nn.Conv2d | nn.Linear | nn.Embedding):
                pointwise = isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)
                weight = m.parametrizations.weight.original if hasattr(m, "parametrizations") else m.weight  # type: ignore[union-attr]
                nn.init.xavier_uniform_(weight, math.sqrt(2) if pointwise else 1.0, generator=draw)  # type: ignore[arg-type]
                if not isinstance(m, nn.Embedding) and m.bias is not None:
                    nn.init.zeros_(m.bias)
    return net
