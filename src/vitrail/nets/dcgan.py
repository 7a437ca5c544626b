"""The conditional DCGAN of Fan & Liu (2020), section 3.2: four (transposed) convolutions for 32x32 images."""

from __future__ import annotations

from math import gcd
from typing import Literal

import torch
from torch import Tensor, nn

from vitrail.nets.generators import num_doublings, transposed_maps


class DcganGenerator(nn.Module):
    """Generator: noise and a label embedding to an image; BatchNorm, LeakyReLU, tanh.

    Args:
        shape: Channels, height and width of an image.
        classes: Number of classes; 0 without labels.
        width: Channels of the last hidden layer.
        z: Number of noise dimensions.

    Examples:
        >>> DcganGenerator((1, 8, 8), 2, 4, 8)(torch.zeros(3, 8), torch.tensor([0, 1, 1])).shape
        torch.Size([3, 1, 8, 8])
    """

    def __init__(self, shape: tuple[int, int, int], classes: int, width: int = 32, z: int = 100) -> None:
        super().__init__()
        n = num_doublings(shape[1])
        self.z, self.classes = z, classes
        self.embed = nn.Embedding(classes, max(10, classes)) if classes else None
        inside = z + (self.embed.embedding_dim if self.embed else 0)
        layers: list[nn.Module] = [nn.ConvTranspose2d(inside, width << (n - 1), 4, bias=False)]
        for i in range(n - 1, -1, -1):
            channels = width << i
            outside = width << (i - 1) if i else shape[0]
            layers += [nn.BatchNorm2d(channels), nn.LeakyReLU(0.2)]
            layers += [nn.ConvTranspose2d(channels, outside, 4, 2, 1, bias=i == 0)]
        self.layers = nn.Sequential(*layers, nn.Tanh())

    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        if self.embed is not None and y is not None:
            z = torch.cat([z, self.embed(y)], 1)
        return self.layers(z[:, :, None, None])

    def feature_maps(self, side: int) -> list[tuple[int, int]]:  # noqa: ARG002
        """Return (channels, height) of every feature map."""
        return transposed_maps(self)


class DcganDiscriminator(nn.Module):
    """Discriminator: an image and its label, as one plane per class, to a logit; BatchNorm, LeakyReLU.

    Args:
        shape: Channels, height and width of an image.
        classes: Number of classes; 0 without labels.
        width: Channels of the first hidden layer.
        norm: "batch", or "group" to normalise each image independently, as per-example gradients need it.
    """

    def __init__(
        self, shape: tuple[int, int, int], classes: int, width: int = 32, norm: Literal["batch", "group"] = "batch"
    ) -> None:
        super().__init__()
        n = num_doublings(shape[1])
        self.classes = classes
        layers: list[nn.Module] = [nn.Conv2d(shape[0] + classes, width, 4, 2, 1), nn.LeakyReLU(0.2)]
        for i in range(1, n):
            layers += [nn.Conv2d(width << (i - 1), width << i, 4, 2, 1, bias=False)]
            channels = width << i
            layers += [nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(gcd(channels, 8), channels)]
            layers += [nn.LeakyReLU(0.2)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(width << (n - 1), 1, 4))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        if self.classes and y is not None:
            planes = (y[:, None] == torch.arange(self.classes, device=y.device)).to(x.dtype)[:, :, None, None]
            x = torch.cat([x, planes.expand(-1, -1, *x.shape[2:])], 1)
        return self.layers(x).flatten()


def initialise(net: nn.Module, generator: torch.Generator) -> nn.Module:
    """Draw first weights: N(0, 0.02) for convolutions, N(1, 0.02) for BatchNorm's scale, N(0, 1) for embeddings."""
    with torch.no_grad():
        for m in net.modules():
            if isinstance(m, nn.Conv2d | nn.ConvTranspose2d | nn.BatchNorm2d | nn.Embedding):
                mean, std = float(isinstance(m, nn.BatchNorm2d)), 1.0 if isinstance(m, nn.Embedding) else 0.02
                m.weight.normal_(mean, std, generator=generator)
                if (bias := getattr(m, "bias", None)) is not None:
                    bias.zero_()
    return net
