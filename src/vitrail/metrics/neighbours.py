"""Who lies among whose neighbours: improved precision and recall, density and coverage.

Kynkäänniemi et al. 2019; Naeem et al. 2020.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

NEAREST = 5

Matrix = NDArray[np.floating[Any]]


class Neighbourhoods:
    """All distances within and between two sets, computed once; the sets may then be looked at without some of them."""

    def __init__(self, real: Matrix, fake: Matrix) -> None:
        from prdc.prdc import compute_pairwise_distance  # it brings scikit-learn, which takes seconds

        self.within_real, self.within_fake = compute_pairwise_distance(real), compute_pairwise_distance(fake)
        self.between = compute_pairwise_distance(real, fake)  # real down, fake across

    def shares(
        self, real: NDArray[np.bool_] | slice = slice(None), fake: NDArray[np.bool_] | slice = slice(None)
    ) -> dict[str, float]:
        """Precision, recall, density and coverage of some of the points, as `prdc.compute_prdc` has them."""
        from prdc.prdc import get_kth_value

        real_radius, fake_radius = (
            get_kth_value(d[some][:, some], NEAREST + 1)
            for d, some in ((self.within_real, real), (self.within_fake, fake))
        )  # a point is its own nearest
        between = self.between[real][:, fake]
        inside_real = between < real_radius[:, None]
        return {
            "precision": float(inside_real.any(0).mean()),
            "recall": float((between < fake_radius).any(1).mean()),
            "density": float(inside_real.sum(0).mean() / NEAREST),
            "coverage": float((between.min(1) < real_radius).mean()),
        }
