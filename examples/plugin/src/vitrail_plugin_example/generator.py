"""A generator for methods with the setting `generator`: `vitrail run prism generator=mlp`."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Mlp(nn.Module):
    """One hidden layer; without biases, because PRISM trains a mask over all parameters."""

    def __init__(self, shape: tuple[int, int, int], classes: int, width: float) -> None:
        super().__init__()
        self.z, self.classes, self.shape = 32, classes, shape
        hidden = max(8, round(128 * width))
        self.layers = nn.Sequential(
            nn.Linear(self.z + classes, hidden, bias=False),
            nn.ReLU(),
            nn.Linear(hidden, math.prod(shape), bias=False),
            nn.Tanh(),
        )

    def forward(self, z: Tensor, labels: Tensor | None = None) -> Tensor:
        if self.classes and labels is not None:
            z = torch.cat([z, F.one_hot(labels, self.classes).to(z.dtype)], 1)
        out: Tensor = self.layers(z).view(-1, *self.shape)
        return out
