"""From a picture to the noise that makes it: Algorithm 2 of PaDPaF.

Maps Z^c and Z^s_i take the discriminators' features to z^c and z^s. They are trained on what the generators make, where
the picture's noise is known to nobody: a picture made from the maps' z must have the content features of the first one
(Barlow Twins, Eq. 8; line 9). The paper's objective is that term alone. With few features it leaves much open, so by
default the maps also learn the noise itself, which is at hand: `latent` is that term's weight, and 0 gives the paper's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.analysis.trained import BATCH, Trained
from vitrail.methods.padpaf.losses import barlow_twins
from vitrail.nets.content_style import ContentStyleGenerator
from vitrail.utils.determinism import one_thread
from vitrail.utils.rng import Rng

Tell = Callable[[str], None]
SIZE = 64  # pictures in a step


class LatentMap(nn.Module):
    """Standardised features to a latent: one hidden layer; the latent has the length that noise has."""

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
class Maps:
    """Z^c, which is everybody's, and each client's Z^s_i, with the networks that they belong to."""

    trained: Trained
    content: LatentMap
    style: dict[str, LatentMap]
    losses: list[float]

    @torch.no_grad()
    def content_of(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """z̃^c of pictures in [-1, 1]: what may be handed on."""
        z: Tensor = self.content(self.trained.content(x), y)
        return z

    @torch.no_grad()
    def restyle(self, x: Tensor, to: str, y: Tensor | None = None, seed: int = 0) -> Tensor:
        """Pictures with the content of these and a style of client `to`, drawn anew (line 11)."""
        G, z_c = self.trained.generators[to], self.content_of(x, y)
        z_s = torch.randn(len(x), G.latent, generator=Rng((seed,)).child("restyle").torch())
        return _made(G, torch.cat([z_c, z_s], 1), y)

    @torch.no_grad()
    def reconstruct(self, x: Tensor, client: str, y: Tensor | None = None) -> Tensor:
        """A client's own pictures made again, from both latents (line 8)."""
        z_s: Tensor = self.style[client](self.trained.style(client, x))
        return _made(self.trained.generators[client], torch.cat([self.content_of(x, y), z_s], 1), y)


def learn_maps(
    trained: Trained,
    steps: int = 2000,
    latent: float = 1.0,
    seed: int = 0,
    tell: Callable[[str], None] = lambda _: None,
) -> Maps:
    """Lines 3 to 10: no picture of a client is looked at, only what the clients' generators make."""
    rng, names, method = Rng((seed,)).child("maps"), list(trained.generators), trained.method
    first = {name: _fakes(trained, name, SIZE, rng.child("first", name).torch())[0] for name in names}
    phi_s = {name: trained.style(name, x) for name, x in first.items()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.child("networks").seed())  # torch's layers draw from the global state
        content = LatentMap(trained.content(torch.cat(list(first.values()))), method.latent_dim, method.task.classes)
        style = {name: LatentMap(phi, method.latent_dim) for name, phi in phi_s.items()}
    maps = Maps(trained, content, style, [])
    parameters = [p for net in (content, *style.values()) for p in net.parameters()]
    optimizer = torch.optim.Adam(parameters, 2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    draw = rng.child("training").torch()
    with one_thread(), torch.enable_grad():
        for t in range(steps):
            client = names[int(torch.randint(len(names), (1,), generator=draw))]  # line 4
            loss = _loss(maps, client, latent, draw)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            maps.losses.append(float(loss.detach()))
            if t % 50 == 49:
                tell(f"maps from features to latents: step {t + 1:,} of {steps:,}")
    for net in (content, *style.values()):
        net.eval().requires_grad_(False)
    return maps


def _loss(maps: Maps, client: str, latent: float, draw: torch.Generator) -> Tensor:
    """Lines 5 to 9 for one client."""
    trained = maps.trained
    G, D_c = trained.generators[client], trained.D_c
    x, z, y = _fakes(trained, client, SIZE, draw)
    with torch.no_grad():
        phi_c, phi_s = D_c.features(x), trained.D_s[client].features(x)
    z_c, z_s = maps.content(phi_c, y), maps.style[client](phi_s)
    again = D_c.features(G(torch.cat([z_c, z_s], 1), y))
    loss = barlow_twins(D_c.project(phi_c), D_c.project(again))
    if latent:
        true_c, true_s = z.chunk(2, 1)
        loss = loss + latent * ((z_c - true_c).square().mean() + (z_s - true_s).square().mean())
    return loss


@torch.no_grad()
def _fakes(trained: Trained, client: str, n: int, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor | None]:
    """Pictures of a client's generator, and what they were made from (lines 5 and 6)."""
    G, classes = trained.generators[client], trained.method.task.classes
    z = torch.randn(n, G.z, generator=draw)
    y = torch.randint(classes, (n,), generator=draw) if classes else None
    return G(z, y), z, y


def _made(G: ContentStyleGenerator, z: Tensor, y: Tensor | None) -> Tensor:
    parts = [G(some, None if y is None else y[at : at + BATCH]) for at, some in _batches(z)]
    return torch.cat(parts) if parts else torch.empty(0)


def _batches(z: Tensor) -> list[tuple[int, Tensor]]:
    return [(at, z[at : at + BATCH]) for at in range(0, len(z), BATCH)]
