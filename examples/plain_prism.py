"""PRISM (Seo, Han, Yoo; ICLR 2025), Algorithm 1, written as directly as the paper's pseudocode.

    python examples/plain_prism.py --rounds 5
    VITRAIL_ASSETS=FOLDER python examples/plain_prism.py --size 32 --generator resnet --features vgg19

trains on the 8x8 digits of scikit-learn, in seconds, and writes grid.png. Only the images and the weights of ψ come
from Vitrail. `vitrail run prism` is faster and better: methods/prism/algorithm.py lists the differences. A test in
tests/examples/ checks that both have the same loss and gradient; benchmarks/step.py compares their speed.
"""

from __future__ import annotations

import argparse
import math
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data import load
from vitrail.models.image_grid import write_grid
from vitrail.nets.feature_moments import to_float
from vitrail.nets.feature_network import Features
from vitrail.nets.features import load_features

CLAMP = 0.01  # θ = 0 or 1 would make infinite scores


class MaskedWeight(nn.Module):
    """Frozen W = ±sqrt(2/fan_in) and learned scores s; a call samples M ~ Bern(sigmoid(s)) and returns W⊙M."""

    W: Tensor

    def __init__(self, shape: tuple[int, ...], fan_in: int, times_theta: bool) -> None:
        super().__init__()
        self.register_buffer("W", torch.empty(shape).bernoulli_().mul(2).sub(1) * math.sqrt(2 / fan_in))
        self.s = nn.Parameter(torch.randn(shape))
        self.times_theta = times_theta  # the gradient of the paper's code; else plain straight-through

    def forward(self, draw: torch.Generator) -> Tensor:
        theta = torch.sigmoid(self.s)
        M = (torch.rand(theta.shape, generator=draw) < theta).to(theta.dtype)
        through = theta - theta.detach()  # 0, with the gradient of θ
        return self.W * (M + (theta.detach() * through if self.times_theta else through))


class Block(nn.Module):
    """BN, ReLU, nearest x2, conv3x3, BN, ReLU, conv3x3, plus a bypass of conv1x1 and nearest x2."""

    def __init__(self, a: int, b: int, times_theta: bool) -> None:
        super().__init__()
        self.conv1 = MaskedWeight((b, a, 3, 3), 9 * a, times_theta)
        self.conv2 = MaskedWeight((b, b, 3, 3), 9 * b, times_theta)
        self.bypass = MaskedWeight((b, a, 1, 1), a, times_theta)

    def forward(self, x: Tensor, draw: torch.Generator) -> Tensor:
        h = F.interpolate(F.relu(F.batch_norm(x, None, None, training=True)), scale_factor=2.0)
        h = F.relu(F.batch_norm(F.conv2d(h, self.conv1(draw), padding=1), None, None, training=True))
        h = F.conv2d(h, self.conv2(draw), padding=1)
        return h + F.interpolate(F.conv2d(x, self.bypass(draw)), scale_factor=2.0)


class Generator(nn.Module):
    """The paper's generator: 4x4 pixels, then residual blocks that double the size."""

    def __init__(self, channels: int, z: int, widths: tuple[int, ...], times_theta: bool = False) -> None:
        super().__init__()
        self.z = z
        self.first = MaskedWeight((z, widths[0], 4, 4), z, times_theta)
        self.blocks = nn.ModuleList(Block(a, b, times_theta) for a, b in pairwise(widths))
        self.last = MaskedWeight((channels, widths[-1], 3, 3), 9 * widths[-1], times_theta)

    def forward(self, z: Tensor, draw: torch.Generator) -> Tensor:
        h = F.conv_transpose2d(z[:, :, None, None], self.first(draw))
        for block in self.blocks:
            h = block(h, draw)
        h = F.relu(F.batch_norm(h, None, None, training=True))
        return torch.tanh(F.conv2d(h, self.last(draw), padding=1))


def relus(psi: Features, x: Tensor) -> Tensor:
    """Return ψ(x): all ReLU outputs, concatenated, one row per image."""
    y, outputs = (x.expand(-1, 3, -1, -1) - psi.mean) / psi.std, []
    pool = F.avg_pool2d if psi.plan.pool == "average" else F.max_pool2d
    for i, conv in enumerate(psi.convs):
        y = F.relu(conv(pool(y, 2, ceil_mode=True) if i in psi.plan.opens else y))
        outputs.append(y.flatten(1))
    return torch.cat(outputs, 1)


def mmd(psi: Features, real: Tensor, fake: Tensor) -> Tensor:
    """Return Eq. 1: |mean ψ(real) - mean ψ(fake)|² + |var ψ(real) - var ψ(fake)|²."""
    with torch.no_grad():
        r = relus(psi, real)
    f = relus(psi, fake)
    return (r.mean(0) - f.mean(0)).square().sum() + (r.var(0, correction=0) - f.var(0, correction=0)).square().sum()


def train_client(G: Generator, psi: Features, data: Tensor, steps: int, batch: int, lr: float) -> list[Tensor]:
    """Run the local iterations and return the mask to upload."""
    draw = torch.default_generator
    optimizer = torch.optim.Adam(G.parameters(), lr=lr, betas=(0.5, 0.999))
    for _ in range(steps):
        real = data[torch.randperm(len(data))[:batch]]
        loss = mmd(psi, real, G(torch.randn(batch, G.z), draw))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [torch.bernoulli(torch.sigmoid(s.detach())) for s in G.parameters()]


def main(arguments: list[str] | None = None) -> None:
    """Train K clients one after another; the server averages their masks."""
    parser = argparse.ArgumentParser(description="PRISM in plain PyTorch.")
    for name, value in {"rounds": 5, "clients": 3, "steps": 10, "batch": 64, "lr": 0.1, "size": 8, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--generator", choices=["small", "resnet"], default="small")
    parser.add_argument("--features", default="vitrail-fashion")
    parser.add_argument("--out", type=Path, default=Path("grid.png"))
    a = parser.parse_args(arguments)
    torch.manual_seed(a.seed)
    ups = int(math.log2(a.size)) - 2
    widths = (
        (128, 96, 64, 48, 32, 16)[-ups - 1 :] if a.generator == "small" else tuple(64 << i for i in range(ups, -1, -1))
    )
    psi, G = load_features(a.features), Generator(1, 128, widths)
    clients = to_float(load("digits", size=a.size).train.pixels).chunk(a.clients)
    s = [p.detach().clone() for p in G.parameters()]  # the server's scores
    for t in range(a.rounds):
        masks = []
        for data in clients:
            for p, scores in zip(G.parameters(), s, strict=True):
                p.data.copy_(scores)
            masks.append(train_client(G, psi, data, a.steps, a.batch, a.lr))
        theta = [torch.stack(layer).mean(0) for layer in zip(*masks, strict=True)]
        s = [torch.logit(x.clamp(CLAMP, 1 - CLAMP)) for x in theta]
        for p, scores in zip(G.parameters(), s, strict=True):
            p.data.copy_(scores)
        with torch.no_grad():
            fakes = G(torch.randn(64, G.z), torch.default_generator)
            print(f"round {t + 1}: loss {mmd(psi, clients[0][:64], fakes):.1f}")
    write_grid(a.out, fakes / 2 + 0.5)


if __name__ == "__main__":
    main()
