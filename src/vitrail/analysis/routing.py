"""Route images to clients: each goes to the client whose style discriminator D^s_i is most confident.

Outputs of different D^s_i are hard to compare. Three kinds of confidence: `typical` (negative Mahalanobis distance of
φ^s_i(x) to those of the client's training images), `scaled` (D^s_i(x), standardized over its training images) and
`plain` (D^s_i(x)).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from vitrail.analysis.trained import LoadedRun, TrainedNetworks
from vitrail.analysis.views import mean_over_images
from vitrail.metrics.measure import Measure
from vitrail.utils.determinism import one_thread

By = Literal["typical", "scaled", "plain"]
BY: tuple[By, ...] = get_args(By)
RIDGE = 1e-3  # times the mean variance, so that constant features do not dominate the distance


@dataclass(frozen=True)
class ClientModel:
    """Moments of φ^s_i and of D^s_i over a client's training images."""

    mean: Tensor
    precision: Tensor
    d_mean: Tensor
    d_std: Tensor

    @staticmethod
    def of(phi: Tensor, d: Tensor) -> ClientModel:
        """Compute the moments from the features and the outputs of D^s_i."""
        covariance = torch.cov(phi.T)
        ridge = RIDGE * covariance.diagonal().mean() * torch.eye(len(covariance))
        return ClientModel(phi.mean(0), torch.linalg.inv(covariance + ridge), d.mean(), d.std())

    def confidence(self, phi: Tensor, d: Tensor, by: By) -> Tensor:
        """Return one number per image; higher is more confident."""
        if by == "plain":
            return d
        if by == "scaled":
            return (d - self.d_mean) / (self.d_std + 1e-6)
        difference = phi - self.mean
        return -((difference @ self.precision) * difference).sum(1)


@dataclass(frozen=True)
class Router:
    """Style discriminators of all clients, with the moments of each client's images."""

    trained: TrainedNetworks
    models: dict[str, ClientModel]

    @staticmethod
    def of(run: LoadedRun) -> Router:
        """Compute each client's moments from its own training images."""
        train, models = run.views.train, {}
        for k, name in enumerate(run.views.names):
            phi = run.trained.style(name, train.x[torch.from_numpy(train.client == k)])
            models[name] = ClientModel.of(phi, _d_outputs(run.trained, name, phi))
        return Router(run.trained, models)

    def confidences(self, x: Tensor, by: By = "typical") -> Tensor:
        """Return one row per image in [-1, 1], one column per client."""
        columns = []
        for name, model in self.models.items():
            phi = self.trained.style(name, x)
            columns.append(model.confidence(phi, _d_outputs(self.trained, name, phi), by))
        return torch.stack(columns, 1)

    def route(self, x: Tensor, by: By = "typical") -> list[str]:
        """Return the client of each image."""
        return [list(self.models)[k] for k in self.confidences(x, by).argmax(1).tolist()]


@torch.no_grad()
def _d_outputs(trained: TrainedNetworks, client: str, phi: Tensor) -> Tensor:
    return trained.D_s[client].head(phi)


def measure_routing(run: LoadedRun, router: Router) -> tuple[list[Measure], np.ndarray]:
    """Measure routing of held-out images.

    Args:
        run: A run.
        router: Its router.

    Returns:
        The accuracy by each kind of confidence; and the confusion matrix of the first kind, whose rows are the true
        clients and sum to 1.
    """
    test, n = run.views.test, len(run.views.names)
    found, table = [], np.zeros((n, n))
    with one_thread():
        for by in BY:
            to = router.confidences(test.x, by).argmax(1).numpy()
            correct = np.asarray(to == test.client, np.float64)
            if by == BY[0]:
                np.add.at(table, (test.client, to), 1)
            bounded = mean_over_images(correct, test.source)
            name, note = f"routed correctly, {by}", f"random guess: {1 / n:.1%}"
            found.append(Measure(name, *bounded, len(to), 0, "higher", "D^s of each client", note))
    return found, table / table.sum(1, keepdims=True).clip(1)


def draw_routes(table: np.ndarray, names: Sequence[str], path: Path) -> None:
    """Write the confusion matrix as an image: one row per true client, one column per chosen client."""
    from matplotlib.figure import Figure

    n = len(names)
    figure = Figure(figsize=(2.2 + 0.42 * n, 1.7 + 0.32 * n), layout="constrained")
    ax = figure.subplots()
    ax.imshow(table, cmap="Blues", vmin=0, vmax=1)
    for i in range(n):
        for k in range(n):
            color = "white" if table[i, k] > 0.6 else "black"
            ax.text(k, i, f"{table[i, k]:.0%}", ha="center", va="center", fontsize=7, color=color)
    ax.set_xticks(range(n), names, rotation=45, ha="right", fontsize=8)
    ax.set_yticks(range(n), names, fontsize=8)
    ax.set_xlabel("routed to")
    ax.set_ylabel("true client")
    figure.savefig(path, dpi=90, format="png")
