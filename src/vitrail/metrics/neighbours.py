"""Improved precision and recall (Kynkäänniemi et al. 2019), density and coverage (Naeem et al. 2020)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

NEAREST = 5

Matrix = NDArray[np.floating[Any]]


class Neighbourhoods:
    """All distances within and between two sets of features, computed once, for measures of any of their subsets."""

    def __init__(self, real: Matrix, fake: Matrix) -> None:
        from prdc.prdc import compute_pairwise_distance  # its import of scikit-learn takes seconds

        self.within_real, self.within_fake = compute_pairwise_distance(real), compute_pairwise_distance(fake)
        self.between = compute_pairwise_distance(real, fake)  # one row per real image, one column per generated image

    def shares(
        self, real: NDArray[np.bool_] | slice = slice(None), fake: NDArray[np.bool_] | slice = slice(None)
    ) -> dict[str, float]:
        """Return precision, recall, density and coverage of subsets, as defined by `prdc.compute_prdc`.

        Args:
            real: Mask over the real images; by default all.
            fake: Mask over the generated images; by default all.
        """
        from prdc.prdc import get_kth_value

        real_radius, fake_radius = (
            get_kth_value(d[some][:, some], NEAREST + 1)
            for d, some in ((self.within_real, real), (self.within_fake, fake))
        )  # each point is its own nearest neighbour
        between = self.between[real][:, fake]
        inside_real = between < real_radius[:, None]
        return {
            "precision": float(inside_real.any(0).mean()),
            "recall": float((between < fake_radius).any(1).mean()),
            "density": float(inside_real.sum(0).mean() / NEAREST),
            "coverage": float((between.min(1) < real_radius).mean()),
        }
