"""PaDPaF as a β-VAE: Almansoori, Horváth, Takáč; 2024; Appendix C.2.4 (Kingma & Welling 2013, Higgins et al. 2017).

z = (z^c, z^s). Federated are the content encoder p(z^c|x) and the decoder's convolutions G^c; private are the style
encoder p(z^s|x), the vectorizer G^s_i and the conditional BatchNorm through which style enters G^c. A client lowers
Eq. 16, -E log p(x|z) + β KL(p(z|x) ‖ N(0, 1)), p(x|z) a Gaussian of unit variance about G^c(z^c, G^s_i(z^s), y), and λ
times Barlow Twins: samples that share z^c should have content codes that agree, samples that share z^s style codes.

The paper tells neither networks nor β, only that λ ≤ β and low values are best. Here the encoders are of
nets/encoder.py, the decoder is PaDPaF's generator, Barlow Twins compares the codes' means, and labels, where
there are any, go to the decoder alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.padpaf.losses import barlow_twins
from vitrail.methods.padpaf.partial_federation import PartiallyFederated, ProximalTerm
from vitrail.methods.padpaf.training import batches, latents
from vitrail.nets.content_style import Content, ContentStyleGenerator, Style
from vitrail.nets.encoder import Encoder
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

Code = tuple[Tensor, Tensor]  # mean and log-variance of z


@dataclass(frozen=True)
class PaDPaFVae(PartiallyFederated):
    """The β-VAE's settings."""

    lam: Annotated[
        float, Field(ge=0, le=1e6, description="λ: weight of Barlow Twins, of content and of style; at most β")
    ] = 0.1
    beta: Annotated[float, Field(ge=0, le=1e6, description="β: weight of the divergence from N(0, 1)")] = 0.5

    of_content: ClassVar[tuple[str, ...]] = ("generator", "encoder")
    of_style: ClassVar[tuple[str, ...]] = ("style", "style_encoder")
    metrics: ClassVar[tuple[str, ...]] = ("reconstruction", "divergence", "barlow_twins")

    def content(self) -> gan.Nets:
        """G^c and the content encoder."""
        return {"generator": self.generator(), "encoder": Encoder(self.task.shape, self.width, self.latent_dim)}

    def style(self, content: nn.Module) -> gan.Nets:
        """G^s_i with its conditional BatchNorm, and the style encoder."""
        assert isinstance(content, Content)  # noqa: S101
        return {
            "style": Style(content, self.style_depth),
            "style_encoder": Encoder(self.task.shape, self.width, self.latent_dim),
        }

    def learn(
        self, nets: gan.Nets, state: State, pull: ProximalTerm, t: int, data: Images, rng: Rng
    ) -> tuple[State, NDArray[Any]]:
        """Steps of one Adam on all networks together."""
        everything = nn.ModuleDict(nets).to(self.task.device).train()
        decoder = joined(nets).to(self.task.device).train()
        optimizer = gan.adam(everything, self.lr * self.lr_decay**t, self.betas, state.get("optimizer"))
        draw = rng.child("training").torch()
        measured: list[Tensor] = []
        for x, y in batches(self, data, rng):
            noise = torch.randn(2, len(x), self.latent_dim, generator=draw).to(x.device)
            reconstruction, divergence = elbo(nets, decoder, x, y, noise)
            labels = torch.arange(self.task.classes) if self.task.classes else None
            twins = agreement(nets, decoder, latents(self, labels, draw, pairs=True))
            gan.step(optimizer, reconstruction + self.beta * divergence + self.lam * twins + pull(nets))
            measured.append(torch.stack([reconstruction, divergence, twins]).detach())
        return {"optimizer": optimizer.state_dict()["state"]}, torch.stack(measured).mean(0).cpu().numpy()


def joined(nets: gan.Nets) -> ContentStyleGenerator:
    """The decoder of content and style."""
    content, style = nets["generator"], nets["style"]
    assert isinstance(content, Content) and isinstance(style, Style)  # noqa: S101, PT018
    return ContentStyleGenerator(content, style)


def elbo(
    nets: gan.Nets, decoder: ContentStyleGenerator, x: Tensor, y: Tensor | None, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Both terms of Eq. 16 without β, a picture's mean: ½‖x - x̂‖², and KL(p(z|x) ‖ N(0, 1)) of content and style."""
    codes: list[Code] = [nets["encoder"](x), nets["style_encoder"](x)]
    z = torch.cat([mu + e * (v / 2).exp() for (mu, v), e in zip(codes, noise, strict=True)], 1)
    reconstruction = (decoder(z, y) - x).square().sum((1, 2, 3)).mean() / 2
    divergence = [(mu.square() + v.exp() - 1 - v).sum(1).mean() / 2 for mu, v in codes]
    return reconstruction, divergence[0] + divergence[1]


def agreement(nets: gan.Nets, decoder: ContentStyleGenerator, noise: gan.Batch) -> Tensor:
    """Γ_i of Eq. 14 on the codes' means; samples are samples, so no gradient enters them."""
    with torch.no_grad():
        x, same_content, same_style = decoder(*noise).chunk(3)
    content = nets["encoder"](torch.cat([x, same_content]))[0].chunk(2)
    style = nets["style_encoder"](torch.cat([x, same_style]))[0].chunk(2)
    return barlow_twins(*content) + barlow_twins(*style)
