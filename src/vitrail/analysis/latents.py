"""Latents of an image, and re-styling: Algorithm 2 of PaDPaF (Almansoori, Horváth, Takáč; TMLR 2024).

Maps Z^c and Z^s_i take discriminator features to z^c and z^s (Eq. 13); they are trained on generated images (Eq. 8).
Difference from the paper: the maps also learn the true latents of generated images, because with few features its
objective is underdetermined. `latent` is the weight of this term; 0 gives the paper's objective.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.analysis.trained import BATCH, Progress, TrainedNetworks
from vitrail.nets.barlow_twins import barlow_twins
from vitrail.nets.content_style import ContentStyleGenerator
from vitrail.utils.determinism import one_thread
from vitrail.utils.rng import Rng

BATCH_SIZE = 64


class LatentMap(nn.Module):
    """One hidden layer from standardized features to a latent with the length of noise.

    Args:
        phi: Features from which mean and standard deviation are computed.
        latent: Dimension of the latent.
        classes: Number of labels, which are appended to the features; 0 without.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, phi: Tensor, latent: int, classes: int = 0) -> None:
        super().__init__()
        self.classes, features = classes, phi.shape[1]
        self.register_buffer("mean", phi.mean(0))
        self.register_buffer("std", phi.std(0) + 1e-4)
        self.layers = nn.Sequential(nn.Linear(features + classes, 4 * latent), nn.ReLU(), nn.Linear(4 * latent, latent))

    def forward(self, phi: Tensor, y: Tensor | None = None) -> Tensor:
        phi = (phi - self.mean) / self.std
        if self.classes and y is not None:
            phi = torch.cat([phi, nn.functional.one_hot(y, self.classes).to(phi)], 1)
        z: Tensor = self.layers(phi)
        return z * torch.rsqrt(z.square().mean(1, keepdim=True) + 1e-8)


@dataclass(frozen=True)
class LatentMaps:
    """Z^c, shared by all clients, and each client's Z^s_i, with the networks they were trained for."""

    trained: TrainedNetworks
    content: LatentMap
    style: dict[str, LatentMap]
    losses: list[float]

    @torch.no_grad()
    def content_latent(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Return z̃^c of images in [-1, 1]."""
        z: Tensor = self.content(self.trained.content(x), y)
        return z

    @torch.no_grad()
    def restyle(self, x: Tensor, to: str, y: Tensor | None = None, seed: int = 0) -> Tensor:
        """Return images with this content, in a random style of client `to` (line 11)."""
        G, z_c = self.trained.generators[to], self.content_latent(x, y)
        z_s = torch.randn(len(x), G.latent, generator=Rng((seed,)).child("restyle").torch())
        return _generate(G, torch.cat([z_c, z_s], 1), y)


def learn_maps(
    trained: TrainedNetworks, steps: int = 2000, latent: float = 1.0, seed: int = 0,
    progress: Progress = lambda _: None,
) -> LatentMaps:  # fmt: skip
    """Learn the maps of all clients (lines 3 to 10); only generated images are used.

    Args:
        trained: Networks of a run.
        steps: Training steps (t_max).
        latent: Weight of the squared error of the latents; 0: the paper's objective.
        seed: Seed of the maps and of the generated images.
        progress: Called with a message from time to time.
    """
    rng, names = Rng((seed,)).child("maps"), list(trained.generators)
    first = {name: _sample(trained, name, BATCH_SIZE, rng.child("first", name).torch())[0] for name in names}
    phi_s = {name: trained.style(name, x) for name, x in first.items()}
    dim = trained.generators[names[0]].latent
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.child("networks").seed())  # torch's layers draw from the global state
        content = LatentMap(trained.content(torch.cat(list(first.values()))), dim, trained.classes)
        style = {name: LatentMap(phi, dim) for name, phi in phi_s.items()}
    maps = LatentMaps(trained, content, style, [])
    parameters = [p for net in (content, *style.values()) for p in net.parameters()]
    optimizer = torch.optim.Adam(parameters, 2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    draw = rng.child("training").torch()
    with one_thread(), torch.enable_grad():
        for t in range(steps):  # line 3
            client = names[int(torch.randint(len(names), (1,), generator=draw))]  # line 4
            loss = _loss(maps, client, latent, draw)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            maps.losses.append(float(loss.detach()))
            if t % 50 == 49:
                progress(f"maps from features to latents: step {t + 1:,} of {steps:,}")
    for net in (content, *style.values()):
        net.eval().requires_grad_(False)
    return maps


def _loss(maps: LatentMaps, client: str, latent: float, draw: torch.Generator) -> Tensor:
    """Lines 5 to 9 for one client."""
    trained = maps.trained
    G, D_c = trained.generators[client], trained.D_c
    x, z, y = _sample(trained, client, BATCH_SIZE, draw)  # lines 5 and 6
    with torch.no_grad():
        phi_c, phi_s = D_c.features(x), trained.D_s[client].features(x)
    z_c, z_s = maps.content(phi_c, y), maps.style[client](phi_s)  # line 7
    reconstructed = D_c.features(G(torch.cat([z_c, z_s], 1), y))  # line 8
    loss = barlow_twins(D_c.project(phi_c), D_c.project(reconstructed))  # line 9
    if latent:
        true_c, true_s = z.chunk(2, 1)
        loss = loss + latent * ((z_c - true_c).square().mean() + (z_s - true_s).square().mean())
    return loss


@torch.no_grad()
def _sample(
    trained: TrainedNetworks, client: str, n: int, draw: torch.Generator
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Draw images of a client's generator, with their latents and labels."""
    G = trained.generators[client]
    z = torch.randn(n, G.z, generator=draw)
    y = torch.randint(trained.classes, (n,), generator=draw) if trained.classes else None
    return G(z, y), z, y


def _generate(G: ContentStyleGenerator, z: Tensor, y: Tensor | None) -> Tensor:
    batches = range(0, len(z), BATCH)
    images = [G(z[at : at + BATCH], None if y is None else y[at : at + BATCH]) for at in batches]
    return torch.cat(images) if images else torch.empty(0)
