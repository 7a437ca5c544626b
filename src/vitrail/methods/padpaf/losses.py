"""PaDPaF's losses: the GAN terms of both discriminators, and Barlow Twins (Eq. 7, 8 and 14)."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

Form = Literal["wasserstein", "hinge"]
OFF_DIAGONAL = 0.005  # λ_BT of Eq. 8


def d_loss(real: Tensor, fake: Tensor, form: Form) -> Tensor:
    """What a discriminator lowers: E D(x̃) - E D(x), each beyond the margin of 1 left out by hinge.

    >>> d_loss(Tensor([3.0]), Tensor([-0.5]), "wasserstein").item()
    -3.5
    >>> d_loss(Tensor([3.0]), Tensor([-0.5]), "hinge").item()
    0.5
    """
    if form == "wasserstein":
        return fake.mean() - real.mean()
    return F.relu(1 - real).mean() + F.relu(1 + fake).mean()


def g_loss(fake: Tensor) -> Tensor:
    """What the generator lowers, with either form: -E D(x̃)."""
    return -fake.mean()


def barlow_twins(A: Tensor, B: Tensor) -> Tensor:
    """Eq. 8 on the cross-correlation C of two batches of features, centred (Zbontar et al. 2021).

    Twins that agree, with two features that do not correlate, cost nothing.

    >>> A = Tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    >>> round(barlow_twins(A, A).item(), 4), round(barlow_twins(A, -A).item(), 4)
    (0.0, 8.0)
    """
    C = F.normalize(A - A.mean(0), dim=0).T @ F.normalize(B - B.mean(0), dim=0)  # Eq. 7
    diagonal = C.diagonal()
    return (1 - diagonal).square().sum() + OFF_DIAGONAL * (C.square().sum() - diagonal.square().sum())
