"""Whose is a picture? Each client's style discriminator says how much it looks like one of its own.

D^s_i was trained to tell client i's pictures from its fakes, and clients' outputs have no common scale. So each client
also says how its own training pictures fare: `scaled` is D^s_i(x) less their mean, over their standard deviation, and
the picture goes to the most confident client. Two numbers of each client travel for that, and no picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitrail.determinism import one_thread
from vitrail.evaluate.measure import Measure
from vitrail.uses.trained import BATCH, Opened
from vitrail.uses.views import mean_over_pictures

BY = ("scaled", "plain")


@dataclass(frozen=True)
class Router:
    """Confidences of all clients in one scale."""

    opened: Opened
    mean: Tensor  # (clients,), of D^s_i over client i's own training pictures
    std: Tensor

    @staticmethod
    def of(opened: Opened) -> Router:
        """Each client looks at its own training pictures."""
        train = opened.views.train
        own = [
            _says(opened, name, train.x[torch.from_numpy(train.client == k)])
            for k, name in enumerate(opened.views.names)
        ]
        return Router(opened, torch.stack([o.mean() for o in own]), torch.stack([o.std() for o in own]))

    def confidences(self, x: Tensor, by: str = "scaled") -> Tensor:
        """A row for each picture in [-1, 1], a column for each client; higher is more confident."""
        says = torch.stack([_says(self.opened, name, x) for name in self.opened.views.names], 1)
        return (says - self.mean) / (self.std + 1e-6) if by == "scaled" else says

    def route(self, x: Tensor, by: str = "scaled") -> list[str]:
        """The client to which each picture goes."""
        return [self.opened.views.names[k] for k in self.confidences(x, by).argmax(1).tolist()]


@torch.no_grad()
def _says(opened: Opened, client: str, x: Tensor) -> Tensor:
    return torch.cat([opened.trained.D_s[client](some) for some in x.split(BATCH)])


def measure_routing(opened: Opened, router: Router) -> tuple[list[Measure], np.ndarray]:
    """The share of held-out pictures that reach their client, and who gets whose (rows are the true clients)."""
    test, n = opened.views.test, len(opened.views.names)
    found, table = [], np.zeros((n, n))
    with one_thread():
        for by in BY:
            to = router.confidences(test.x, by).argmax(1).numpy()
            right = np.asarray(to == test.client, np.float64)
            if by == "scaled":
                np.add.at(table, (test.client, to), 1)
            note = f"chance: {1 / n:.1%}" + ("; D^s_i(x) as it is" if by == "plain" else "")
            bounded = mean_over_pictures(right, test.shows)
            found.append(Measure(f"routed rightly, {by}", *bounded, len(to), 0, "higher", "D^s of each client", note))
    return found, table / table.sum(1, keepdims=True).clip(1)


def draw_routes(table: np.ndarray, names: Sequence[str], path: Path) -> None:
    """A picture of who gets whose: a row for each true client, a column for each that was chosen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    n = len(names)
    figure = Figure(figsize=(2.2 + 0.42 * n, 1.7 + 0.32 * n), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.add_subplot()
    ax.imshow(table, cmap="Blues", vmin=0, vmax=1)
    for i in range(n):
        for k in range(n):
            ink = "white" if table[i, k] > 0.6 else "black"
            ax.text(k, i, f"{table[i, k]:.0%}", ha="center", va="center", fontsize=7, color=ink)
    ax.set_xticks(range(n), names, rotation=45, ha="right", fontsize=8)
    ax.set_yticks(range(n), names, fontsize=8)
    ax.set_xlabel("goes to")
    ax.set_ylabel("is a picture of")
    figure.savefig(path, dpi=90, format="png")
