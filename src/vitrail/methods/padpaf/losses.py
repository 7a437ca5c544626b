"""Losses of PaDPaF: the GAN terms of both discriminators (Eq. 9) and the proximal term of FedProx and Ditto."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.wire.codecs import Array

Form = Literal["wasserstein", "hinge"]


def d_loss(real: Tensor, fake: Tensor, form: Form) -> Tensor:
    """Return the loss of one discriminator from its outputs: E D(x̃) - E D(x), or its hinge form with margin 1.

    >>> d_loss(Tensor([3.0]), Tensor([-0.5]), "wasserstein").item()
    -3.5
    >>> d_loss(Tensor([3.0]), Tensor([-0.5]), "hinge").item()
    0.5
    """
    if form == "wasserstein":
        return fake.mean() - real.mean()
    return F.relu(1 - real).mean() + F.relu(1 + fake).mean()


def g_loss(fake: Tensor) -> Tensor:
    """Return the generator's loss for one discriminator, the same in both forms: -E D(x̃)."""
    return -fake.mean()


@dataclass(frozen=True)
class ProximalTerm:
    """μ/2 ‖θ - θ_0‖² over the parameters of some networks (FedProx: Li et al., MLSys 2020).

    Args:
        mu: Weight of the term; with 0 it is not computed.
        start: θ_0 of each network, as one vector.
    """

    mu: float
    start: Mapping[str, Array]

    def __call__(self, nets: Mapping[str, nn.Module]) -> Tensor | float:
        """Return the term, summed over those networks that have a θ_0."""
        terms = []
        for name in (n for n in nets if self.mu and n in self.start):
            theta = list(nets[name].parameters())
            theta_0 = torch.from_numpy(self.start[name].astype(np.float32)).to(theta[0].device)
            pieces = theta_0.split([p.numel() for p in theta])
            terms += [(p - q.view_as(p)).square().sum() for p, q in zip(theta, pieces, strict=True)]
        return self.mu / 2 * torch.stack(terms).sum() if terms else 0.0
