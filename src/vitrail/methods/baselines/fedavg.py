"""FedAvg and FedProx for classifiers.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data; AISTATS 2017. Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks;
MLSys 2020. Each client trains from the global w_t and sends its change; the server adds the mean, weighted by number
of images. FedProx adds μ/2 ‖w - w_t‖² to each client's loss.

Differences from the papers: see classification.py, which has the server's half.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data.dataset import Images
from vitrail.methods.base import Reply, ServerMessage, setting
from vitrail.methods.baselines.classification import FederatedClassifier
from vitrail.utils.rng import Rng
from vitrail.utils.state import State


@dataclass(frozen=True)
class FedAvg(FederatedClassifier):
    """FedAvg (Algorithm 1 of McMahan et al.)."""

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """ClientUpdate: local steps from w_t."""
        C = self.load_net(message.parts["network"])
        w_t = [p.detach().clone() for p in C.parameters()]
        loss = self.train(C, lambda x, y: self.objective(C, x, y, w_t), data, message.round, rng)
        return state, self.make_reply(C, message, data, loss)

    def objective(self, C: nn.Module, x: Tensor, y: Tensor, w_t: list[Tensor]) -> Tensor:  # noqa: ARG002
        """Return F(w), the loss that a client minimizes."""
        return F.cross_entropy(C(x), y)


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedProx: FedAvg with a proximal term."""

    prox_mu: float = setting(0.1, "weight μ of the proximal term μ/2 ‖w - w_t‖²; 0: FedAvg", ge=0, le=1e6)

    def objective(self, C: nn.Module, x: Tensor, y: Tensor, w_t: list[Tensor]) -> Tensor:
        """Return h(w; w_t) = F(w) + μ/2 ‖w - w_t‖²."""
        distances = [(w - start).square().sum() for w, start in zip(C.parameters(), w_t, strict=True)]
        return super().objective(C, x, y, w_t) + self.prox_mu / 2 * torch.stack(distances).sum()
