"""A client's steps in PaDPaF: GANOPT of Algorithm 1, with the regulariser of Eq. 14."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.padpaf.losses import barlow_twins, d_loss, g_loss
from vitrail.nets.content_style import Content, ContentStyleGenerator, Style
from vitrail.nets.spectral_discriminator import SpectralDiscriminator
from vitrail.utils.rng import Rng

if TYPE_CHECKING:
    from vitrail.methods.padpaf.algorithm import PaDPaF
    from vitrail.methods.padpaf.partial_federation import PartiallyFederated, ProximalTerm


class Networks:
    """All of a client's networks, joined as they are trained: G of content and style, D of both discriminators."""

    def __init__(self, nets: gan.Nets, device: str) -> None:
        G_c, G_s, D_c, D_s = (nets[name] for name in ("generator", "style", "discriminator", "style_discriminator"))
        assert isinstance(G_c, Content) and isinstance(G_s, Style)  # noqa: S101, PT018
        assert isinstance(D_c, SpectralDiscriminator) and isinstance(D_s, SpectralDiscriminator)  # noqa: S101, PT018
        self.G = ContentStyleGenerator(G_c, G_s).to(device).train()
        self.D = nn.ModuleList([D_c, D_s]).to(device).train()
        self.D.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster on a CPU
        self.D_c, self.D_s = D_c, D_s
        self.of_G: gan.Nets = {"generator": G_c, "style": G_s}
        self.of_D: gan.Nets = {"discriminator": D_c, "style_discriminator": D_s}


def train(
    run: PaDPaF, model: Networks, optimizers: gan.Optimizers, pull: ProximalTerm, data: Images, t: int, rng: Rng
) -> tuple[int, NDArray[Any]]:
    """The client's loop; returns the count of its steps of D, and the mean losses."""
    draw, labels = rng.child("training").torch(), labels_of_fakes(run, data)
    losses: list[Tensor] = []
    for real in batches(run, data, rng):
        loss_d, twins, loss_g = d_objective(run, model, real, latents(run, labels, draw, pairs=True))
        gan.step(optimizers["D"], loss_d + run.lam * twins + pull(model.of_D))  # line 25
        t += 1
        if t % run.d_steps == 0:  # line 8: train_G
            z, y = latents(run, labels, draw)
            model.D.requires_grad_(False)
            fake = model.G(z, y)
            loss = g_loss(model.D_c(fake, y)) + g_loss(model.D_s(fake))
            gan.step(optimizers["G"], loss + pull(model.of_G))  # line 22
            model.D.requires_grad_(True)
        losses.append(torch.stack([loss_d, loss_g, twins]).detach())
    return t, torch.stack(losses).mean(0).cpu().numpy()


def d_objective(run: PaDPaF, model: Networks, real: gan.Batch, noise: gan.Batch) -> tuple[Tensor, Tensor, Tensor]:
    """-f_i of Eq. 9, Γ_i of Eq. 14, and what G would lower; `noise` is that of `latents` with pairs."""
    z, y = noise
    with torch.no_grad():  # sg: samples are samples
        fake, same_content, same_style = model.G(z, y).chunk(3)
    y_fake = None if y is None else y[: len(fake)]
    sizes = [len(real[0]), len(fake), len(fake)]
    phi_c = model.D_c.features(torch.cat([real[0], fake, same_content])).split(sizes)
    phi_s = model.D_s.features(torch.cat([real[0], fake, same_style])).split(sizes)
    says_c = model.D_c.head(phi_c[0], real[1]), model.D_c.head(phi_c[1], y_fake)
    says_s = model.D_s.head(phi_s[0]), model.D_s.head(phi_s[1])
    loss = d_loss(*says_c, run.loss) + d_loss(*says_s, run.loss)
    twins_c = barlow_twins(model.D_c.project(phi_c[1]), model.D_c.project(phi_c[2]))
    twins_s = barlow_twins(model.D_s.project(phi_s[1]), model.D_s.project(phi_s[2]))
    return loss, twins_c + twins_s, g_loss(says_c[1]) + g_loss(says_s[1])


def labels_of_fakes(run: PaDPaF, data: Images) -> Tensor | None:
    """The labels that fakes may have, all equally likely."""
    if not run.task.classes:
        return None
    if run.fake_labels == "own" and data.labels is not None:
        return torch.from_numpy(np.unique(data.labels))
    return torch.arange(run.task.classes)


def latents(run: PartiallyFederated, labels: Tensor | None, draw: torch.Generator, pairs: bool = False) -> gan.Batch:
    """(z^c, z^s) and y; with pairs also (z^c, z̃^s) and (z̃^c, z^s), in this order."""
    c, s, c2, s2 = torch.randn(4, run.batch_size, run.latent_dim, generator=draw)
    z = torch.cat([c, s], 1)
    y = None if labels is None else labels[torch.randint(len(labels), (run.batch_size,), generator=draw)]
    if pairs:
        z = torch.cat([z, torch.cat([c, s2], 1), torch.cat([c2, s], 1)])
        y = None if y is None else y.repeat(3)
    return z.to(run.task.device), None if y is None else y.to(run.task.device)


def batches(run: PartiallyFederated, data: Images, rng: Rng) -> Iterator[gan.Batch]:
    """Pictures of so many epochs; loopless, of a number of steps with that mean (line 10, π_i ∝ 1/|X_i|)."""
    an_epoch = -(-len(data) // run.batch_size)
    steps = max(1, round(run.local_epochs * an_epoch))
    if run.loopless:
        steps = int(rng.child("loopless").numpy().geometric(1 / steps))
    return islice(gan.epochs(data, math.ceil(steps / an_epoch), run.batch_size, run.task, rng), steps)
