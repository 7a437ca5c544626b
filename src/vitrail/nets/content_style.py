"""PaDPaF's generator in two parts that are never in one vector: content, which all clients share, and style.

x = G^c(z^c, G^s(z^s), y): a ResNet (Gulrajani et al. 2017) whose convolutions are content; style enters through
conditional BatchNorm alone (De Vries et al. 2017), whose maps belong to the style. Where there are labels, style
conditions one half of the channels and the label the other (PaDPaF, Appendix B). BatchNorm's statistics belong to
neither part: in training they are the batch's, and a finished generator computes them from noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.nets.generators import double, ups
from vitrail.nets.resampling import convolution_of_double
from vitrail.utils.rng import Rng


class StyleMap(nn.Linear):
    """γ and β of some channels from a style vector; near 1 and 0 at first."""

    def begin(self, draw: torch.Generator) -> None:
        nn.init.normal_(self.weight, 0, 0.02, generator=draw)
        self.bias.data[: len(self.bias) // 2] = 1
        self.bias.data[len(self.bias) // 2 :] = 0


class LabelMap(nn.Embedding):
    """γ and β of some channels from a label; near 1 and at 0 at first."""

    def begin(self, draw: torch.Generator) -> None:
        half = self.embedding_dim // 2
        nn.init.normal_(self.weight[:, :half], 1, 0.02, generator=draw)
        nn.init.zeros_(self.weight[:, half:])


class Equalised(nn.Linear):
    """StyleGAN's mapping layer: weights of unit scale that learn at a tenth of the rate (Karras et al. 2019)."""

    slow = 0.1

    def begin(self, draw: torch.Generator) -> None:
        nn.init.normal_(self.weight, 0, 1 / self.slow, generator=draw)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.slow * math.sqrt(2 / self.in_features)
        return F.leaky_relu(F.linear(x, self.weight * scale, self.bias * self.slow), 0.2)


def label_maps(features: int, classes: int, layers: int) -> nn.ModuleList:
    """The label's half of every conditional BatchNorm; none without labels."""
    return nn.ModuleList(LabelMap(classes, 2 * (features - features // 2)) for _ in range(layers if classes else 0))


class Content(nn.Module):
    """G^c without its BatchNorm: what is federated. With `labelled` it also owns the maps from labels."""

    def __init__(
        self, shape: tuple[int, int, int], classes: int, features: int, latent: int, labelled: bool = False
    ) -> None:
        super().__init__()
        n = ups(shape[1])
        self.features, self.latent, self.classes, self.layers = features, latent, classes, 2 * n + 1
        self.dense = nn.Linear(latent, 16 * features)
        self.convolutions = nn.ModuleList(nn.Conv2d(features, features, 3, padding=1) for _ in range(2 * n))
        self.last = nn.Conv2d(features, shape[0], 3, padding=1)
        self.labels = label_maps(features, classes if labelled else 0, self.layers)

    def forward(self, z: Tensor, norm: Callable[[int, Tensor], Tensor]) -> Tensor:
        h = self.dense(z).view(-1, self.features, 4, 4).contiguous(memory_format=torch.channels_last)  # faster on a CPU
        for k in range(0, self.layers - 1, 2):
            inner = convolution_of_double(F.relu(norm(k, h)), cast(nn.Conv2d, self.convolutions[k]))
            h = double(h) + self.convolutions[k + 1](F.relu(norm(k + 1, inner)))
        return torch.tanh(self.last(F.relu(norm(self.layers - 1, h))))

    def feature_maps(self, side: int) -> list[tuple[int, int]]:
        """Return (channels, height) of the largest feature map."""
        return [(max(self.features, self.last.out_channels), side)]


class Style(nn.Module):
    """What is private of the generator: the vectorizer G^s: z^s -> s, and the maps from s to BatchNorm's γ and β."""

    def __init__(self, content: Content, depth: int) -> None:
        super().__init__()
        f, latent, classes = content.features, content.latent, content.classes
        self.vectorizer = nn.Sequential(*(Equalised(latent, latent) for _ in range(depth)))
        styled = f // 2 if classes else f
        self.maps = nn.ModuleList(StyleMap(latent, 2 * styled) for _ in range(content.layers))
        self.labels = label_maps(f, 0 if len(content.labels) else classes, content.layers)

    def forward(self, z: Tensor) -> Tensor:
        out: Tensor = self.vectorizer(z * torch.rsqrt(z.square().mean(1, keepdim=True) + 1e-8))
        return out


def parts_of(tree: Mapping[str, Any]) -> tuple[Content, Style]:
    """Both parts, not yet trained, of the sizes that a model's tree names."""
    sizes = tree["width"], tree["latent"], tree["label_maps"] == "federated"
    content = Content(tuple(tree["shape"]), tree["classes"], *sizes)
    return content, Style(content, tree["style_depth"])


class ContentStyleGenerator(nn.Module):
    """Content and a client's style as one generator of z = (z^c, z^s); without a style γ = 1, β = 0 and z = z^c."""

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
            by_style = style.maps[k](s) if style is not None else neutral(h, styled)
            by_label = maps[k](y) if len(maps) and y is not None else neutral(h, f - styled)
            gamma, beta = (
                torch.cat(both, 1)[:, :, None, None]
                for both in zip(by_style.chunk(2, 1), by_label.chunk(2, 1), strict=True)
            )
            return torch.addcmul(beta, gamma, self.norms[k](h))

        out: Tensor = self.content(z[:, : self.latent], norm)
        return out


def neutral(h: Tensor, channels: int) -> Tensor:
    """γ = 1 and β = 0 of some channels, for each picture."""
    n = h.shape[0]  # len(h) would fix the size of a batch in an export
    return torch.cat([h.new_ones(n, channels), h.new_zeros(n, channels)], 1)


class Fixed(nn.Module):
    """A personal generator with one content for all pictures, or one style, each by a seed."""

    def __init__(self, net: ContentStyleGenerator, content: int | None, style: int | None) -> None:
        super().__init__()
        self.net, self.z = net, net.z
        self.seeds = {"content": (content, slice(0, net.latent)), "style": (style, slice(net.latent, net.z))}

    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        z = z.clone()
        for name, (seed, where) in self.seeds.items():
            if seed is not None:
                z[:, where] = torch.randn(self.net.latent, generator=Rng((seed,)).child(name).torch())
        out: Tensor = self.net(z, y)
        return out


def initialise(net: nn.Module, draw: torch.Generator) -> nn.Module:
    """The published code's start: Xavier for convolutions and linear layers, γ = 1 and β = 0 where style enters."""
    with torch.no_grad():
        for m in net.modules():
            if isinstance(m, StyleMap | LabelMap | Equalised):
                m.begin(draw)
            elif isinstance(m, nn.Conv2d | nn.Linear | nn.Embedding):
                pointwise = isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)
                weight = m.parametrizations.weight.original if hasattr(m, "parametrizations") else m.weight  # type: ignore[union-attr]
                nn.init.xavier_uniform_(weight, math.sqrt(2) if pointwise else 1.0, generator=draw)  # type: ignore[arg-type]
                if not isinstance(m, nn.Embedding) and m.bias is not None:
                    nn.init.zeros_(m.bias)
    return net
