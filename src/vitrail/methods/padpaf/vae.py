"""PaDPaF as a β-VAE: Almansoori, Horváth, Takáč; TMLR 2024; Appendix C.2.4. Algorithm 1 with Eq. 16 in place of Eq. 9.

z = (z^c, z^s). Federated: the content encoder p(z^c|x) and the decoder's convolutions G^c. Private: the style encoder
p(z^s|x), the vectorizer G^s_i and the conditional BatchNorm. A client minimizes -E log p(x|z) + β KL(p(z|x) ‖ N(0, 1)),
where p(x|z) is a Gaussian of unit variance around G^c(z^c, G^s_i(z^s), y), plus λ Γ_i (Eq. 14) on the codes' means.

Differences from the paper: it states neither the networks nor β, only λ ≤ β and low values. The decoder here is
PaDPaF's generator, the encoders are convolutional, and labels, if any, enter the decoder only.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.base import setting
from vitrail.methods.padpaf.algorithm import PaDPaF, latents, local_batches
from vitrail.methods.padpaf.losses import Form, ProximalTerm
from vitrail.nets.barlow_twins import barlow_twins
from vitrail.nets.content_style import ContentStyleGenerator
from vitrail.nets.generators import num_doublings
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

Code = tuple[Tensor, Tensor]  # mean and log-variance of z


@dataclass(frozen=True)
class PaDPaFVae(PaDPaF):
    """Algorithm 1 with other networks and another local objective; all else is PaDPaF's."""

    lam: float = setting(0.1, "λ: weight of Barlow Twins, at most β (paper: no value)", ge=0, le=1e6)
    beta: float = setting(0.5, "β: weight of the KL divergence (paper: no value)", ge=0, le=1e6)

    loss: ClassVar[Form] = "hinge"  # type: ignore[misc]  # settings of a GAN, which a VAE does not have
    d_steps: ClassVar[int] = 1  # type: ignore[misc]
    fake_labels: ClassVar[str] = "all"  # type: ignore[misc]
    content_networks: ClassVar[tuple[str, ...]] = ("generator", "encoder")
    style_networks: ClassVar[tuple[str, ...]] = ("style", "style_encoder")
    metrics: ClassVar[tuple[str, ...]] = ("reconstruction", "divergence", "barlow_twins")
    separates_style: ClassVar[bool] = False  # no discriminators, whose features the analysis reads

    def networks(self) -> gan.Nets:
        """Create G^c, the content encoder, G^s_i with its conditional BatchNorm, and the style encoder."""
        nets, shape = super().networks(), self.task.shape
        return {
            "generator": nets["generator"],
            "encoder": Encoder(shape, self.width, self.latent_dim),
            "style": nets["style"],
            "style_encoder": Encoder(shape, self.width, self.latent_dim),
        }

    def train(
        self, nets: gan.Nets, state: State, proximal: ProximalTerm, tau: int, data: Images, rng: Rng
    ) -> tuple[State, NDArray[Any]]:
        """Lines 7 to 10, with one Adam on all networks and Eq. 16 as the objective."""
        theta = nn.ModuleDict(nets).to(self.task.device).train()
        decoder = join_decoder(nets).to(self.task.device).train()
        opt = gan.adam(theta, self.lr * self.lr_decay**tau, self.betas, state.get("optimizer"))
        draw = rng.child("training").torch()
        losses: list[Tensor] = []
        for x, y in local_batches(self, data, rng):
            noise = torch.randn(2, len(x), self.latent_dim, generator=draw).to(x.device)
            reconstruction, divergence = elbo(nets, decoder, x, y, noise)
            labels = torch.arange(self.task.classes) if self.task.classes else None
            twins = code_twins(nets, decoder, latents(self, labels, draw, pairs=True))
            gan.step(opt, reconstruction + self.beta * divergence + self.lam * twins + proximal(nets))
            losses.append(torch.stack([reconstruction, divergence, twins]).detach())
        return {"optimizer": opt.state_dict()["state"]}, torch.stack(losses).mean(0).cpu().numpy()


def join_decoder(nets: gan.Nets) -> ContentStyleGenerator:
    """Return the decoder of content and style."""
    return ContentStyleGenerator(nets["generator"], nets["style"])


def elbo(
    nets: gan.Nets, decoder: ContentStyleGenerator, x: Tensor, y: Tensor | None, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Return both terms of Eq. 16 without β, averaged over images: ½‖x - x̂‖² and KL(p(z|x) ‖ N(0, 1)) of both codes."""
    codes: list[Code] = [nets["encoder"](x), nets["style_encoder"](x)]
    z = torch.cat([mu + e * (v / 2).exp() for (mu, v), e in zip(codes, noise, strict=True)], 1)
    reconstruction = (decoder(z, y) - x).square().sum((1, 2, 3)).mean() / 2
    divergence = [(mu.square() + v.exp() - 1 - v).sum(1).mean() / 2 for mu, v in codes]
    return reconstruction, divergence[0] + divergence[1]


def code_twins(nets: gan.Nets, decoder: ContentStyleGenerator, noise: gan.Batch) -> Tensor:
    """Return Γ_i (Eq. 14) on the codes' means; no gradient flows through the generated images."""
    with torch.no_grad():
        x, same_content, same_style = decoder(*noise).chunk(3)
    content = nets["encoder"](torch.cat([x, same_content]))[0].chunk(2)
    style = nets["style_encoder"](torch.cat([x, same_style]))[0].chunk(2)
    return barlow_twins(*content) + barlow_twins(*style)


class Encoder(nn.Module):
    """p(z|x), for content and for style: strided convolutions to 4x4, then a dense layer to mean and log-variance of z.

    Args:
        shape: Channels, height and width of an image.
        features: Channels of every layer.
        latent: Dimension of z.

    Examples:
        >>> mean, log_variance = Encoder((1, 8, 8), 4, 3)(torch.zeros(2, 1, 8, 8))
        >>> mean.shape, log_variance.shape
        (torch.Size([2, 3]), torch.Size([2, 3]))
    """

    def __init__(self, shape: tuple[int, int, int], features: int, latent: int) -> None:
        super().__init__()
        widths = [shape[0], *[features] * num_doublings(shape[1])]
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, 4, stride=2, padding=1) for a, b in pairwise(widths))
        self.dense = nn.Linear(16 * features, 2 * latent)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.convolutions:
            x = F.leaky_relu(layer(x), 0.2)
        mu, log_variance = self.dense(x.flatten(1)).chunk(2, 1)
        return mu, log_variance
