"""The Barlow Twins loss on two batches of features (Zbontar et al. 2021; PaDPaF, Eq. 7 and 8)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

OFF_DIAGONAL = 0.005  # λ_BT


def barlow_twins(A: Tensor, B: Tensor) -> Tensor:
    """Return L_BT, which is zero if paired features agree and different features are uncorrelated.

    Features are centred over the batch, as in the original paper.

    Args:
        A: Projected features, one row per image.
        B: Projected features of the paired images.

    Examples:
        >>> A = Tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        >>> round(barlow_twins(A, A).item(), 4), round(barlow_twins(A, -A).item(), 4)
        (0.0, 8.0)
    """
    C = F.normalize(A - A.mean(0), dim=0).T @ F.normalize(B - B.mean(0), dim=0)  # Eq. 7
    diagonal = C.diagonal()
    return (1 - diagonal).square().sum() + OFF_DIAGONAL * (C.square().sum() - diagonal.square().sum())  # Eq. 8
