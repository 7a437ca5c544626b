"""An oracle: a classifier trained on held-out real pictures, that judges whether generated ones show what was asked.

Its agreement with the asked labels is Fan & Liu's "Score" (section 4.2). It never sees what clients train on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.artifact import Generator
from vitrail.data.pictures import Pictures
from vitrail.errors import VitrailError
from vitrail.nets.moments import to_float
from vitrail.rng import Rng


@dataclass(frozen=True)
class Oracle:
    """A trained classifier and its own accuracy on real pictures it was not trained on."""

    net: nn.Module
    accuracy: float

    @torch.no_grad()
    def predict(self, pictures: Tensor) -> Tensor:
        """Labels of pictures in [0, 1]."""
        return torch.cat([self.net(batch * 2 - 1).argmax(1) for batch in pictures.split(256)])


def _net(channels: int, classes: int) -> nn.Module:
    def stage(a: int, b: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]

    stages = [*stage(channels, 32), *stage(32, 64), *stage(64, 96)]
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(384, classes))


def _shift(x: Tensor, draw: torch.Generator, most: int = 2) -> Tensor:
    """Each picture moved by up to `most` pixels: with few real pictures an oracle needs the help."""
    n, c, h, w = x.shape
    padded = F.pad(x, (most,) * 4, mode="replicate")
    dy, dx = torch.randint(0, 2 * most + 1, (2, n), generator=draw)
    rows = (dy[:, None] + torch.arange(h))[:, None, :, None]
    columns = (dx[:, None] + torch.arange(w))[:, None, None, :]
    return padded[torch.arange(n)[:, None, None, None], torch.arange(c)[None, :, None, None], rows, columns]


def train_oracle(real: Pictures, classes: int, rng: Rng, steps: int = 600, batch: int = 64) -> Oracle:
    """Train on four fifths of these pictures, measure on the last fifth."""
    if real.labels is None:
        raise VitrailError("an oracle needs labelled pictures; use data that has labels")
    order = rng.child("oracle split").numpy().permutation(len(real))
    cut = len(order) * 4 // 5
    x, y = to_float(real.pixels[order]), torch.from_numpy(real.labels[order])
    draw = rng.child("oracle training").torch()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.child("oracle network").seed())  # torch's layers and dropout draw from the global state
        net = _net(x.shape[1], classes)
        optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
        for _ in range(steps):
            pick = torch.randint(cut, (batch,), generator=draw)
            loss = F.cross_entropy(net(_shift(x[pick], draw)), y[pick], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    oracle = Oracle(net.eval(), 0.0)
    right = oracle.predict((x[cut:] + 1) / 2) == y[cut:]
    return Oracle(net, float(np.mean(right.numpy())))


def agreement(oracle: Oracle, generator: Generator, n: int = 1000, seed: int = 0) -> float:
    """Share of n generated pictures that the oracle takes for what was asked."""
    asked = generator.labels(n)
    if asked is None:
        raise VitrailError("agreement needs a generator with labels; train it with labels=auto on data that has some")
    return float((oracle.predict(generator.sample(n, asked, seed)) == asked).float().mean())
