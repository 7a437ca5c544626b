"""Whose is a picture? Each client's style discriminator says how much it looks like one of its own.

D^s_i was trained to tell client i's pictures from its own fakes, so what it says of another client's picture means
little. Three kinds of confidence, all computed at the client from what it holds:
- `typical`: how near φ^s_i(x) is to those of its training pictures, by Mahalanobis' distance;
- `scaled`: D^s_i(x) less its mean over its training pictures, over its standard deviation;
- `plain`: D^s_i(x).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from vitrail.analysis.trained import Opened, Trained
from vitrail.analysis.views import mean_over_pictures
from vitrail.metrics.measure import Measure
from vitrail.utils.determinism import one_thread

By = Literal["typical", "scaled", "plain"]
BY: tuple[By, ...] = get_args(By)
RIDGE = 1e-3  # of the mean variance, so that features which never vary do not count for everything


@dataclass(frozen=True)
class ClientModel:
    """What a client knows of its own training pictures: moments of φ^s_i, and of D^s_i."""

    mean: Tensor
    precision: Tensor
    d_mean: Tensor
    d_std: Tensor

    @staticmethod
    def of(phi: Tensor, says: Tensor) -> ClientModel:
        """From the features of its pictures and what D^s_i says of them."""
        covariance = torch.cov(phi.T)
        ridge = RIDGE * covariance.diagonal().mean() * torch.eye(len(covariance))
        return ClientModel(phi.mean(0), torch.linalg.inv(covariance + ridge), says.mean(), says.std())

    def confidence(self, phi: Tensor, says: Tensor, by: By) -> Tensor:
        """One number for each picture; higher is more confident."""
        if by == "plain":
            return says
        if by == "scaled":
            return (says - self.d_mean) / (self.d_std + 1e-6)
        apart = phi - self.mean
        return -((apart @ self.precision) * apart).sum(1)


@dataclass(frozen=True)
class Router:
    """All clients' networks, and what each knows of its own pictures."""

    trained: Trained
    own: dict[str, ClientModel]

    @staticmethod
    def of(opened: Opened) -> Router:
        """Each client looks at its own training pictures."""
        train, own = opened.views.train, {}
        for k, name in enumerate(opened.views.names):
            phi = opened.trained.style(name, train.x[torch.from_numpy(train.client == k)])
            own[name] = ClientModel.of(phi, _says(opened.trained, name, phi))
        return Router(opened.trained, own)

    def confidences(self, x: Tensor, by: By = "typical") -> Tensor:
        """A row for each picture in [-1, 1], a column for each client."""
        columns = []
        for name, own in self.own.items():
            phi = self.trained.style(name, x)
            columns.append(own.confidence(phi, _says(self.trained, name, phi), by))
        return torch.stack(columns, 1)

    def route(self, x: Tensor, by: By = "typical") -> list[str]:
        """The client to which each picture goes."""
        return [list(self.own)[k] for k in self.confidences(x, by).argmax(1).tolist()]


@torch.no_grad()
def _says(trained: Trained, client: str, phi: Tensor) -> Tensor:
    return trained.D_s[client].head(phi)


def measure_routing(opened: Opened, router: Router) -> tuple[list[Measure], np.ndarray]:
    """The share of held-out pictures that reach their client, and who gets whose (rows are the true clients)."""
    test, n = opened.views.test, len(opened.views.names)
    found, table = [], np.zeros((n, n))
    with one_thread():
        for by in BY:
            to = router.confidences(test.x, by).argmax(1).numpy()
            right = np.asarray(to == test.client, np.float64)
            if by == BY[0]:
                np.add.at(table, (test.client, to), 1)
            note = f"chance: {1 / n:.1%}"
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
