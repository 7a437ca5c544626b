"""FedAvg: Communication-Efficient Learning of Deep Networks from Decentralized Data, McMahan et al.; AISTATS 2017.

And FedProx: Federated Optimization in Heterogeneous Networks, Li et al.; MLSys 2020. Each client takes local steps from
the global w and sends its change; the server moves by the mean, weighted by pictures. FedProx adds μ/2 ‖w - w_t‖² to
what a client minimises, so that it stays near the global w_t.

What differs from the papers: a number of steps in place of epochs, so that all clients work alike; the learning rate
falls over the rounds; pictures are shifted by up to two pixels; GroupNorm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from vitrail.data.dataset import Images
from vitrail.methods.base import Reply, ServerMessage
from vitrail.methods.baselines.classification import FederatedClassifier, descend
from vitrail.utils.rng import Rng
from vitrail.utils.state import State


@dataclass(frozen=True)
class FedAvg(FederatedClassifier):
    """FedAvg's settings."""

    def objective(self, C: nn.Module, x: Tensor, y: Tensor, w_t: list[Tensor]) -> Tensor:  # noqa: ARG002
        """What a client minimises from w_t on."""
        return F.cross_entropy(C(x), y)

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """ClientUpdate: local steps from w_t."""
        C = self.opened(message.parts["network"])
        w_t = [p.detach().clone() for p in C.parameters()]
        batches = self.draws(data, self.local_steps, rng, self.task.device)
        loss = descend(C, batches, lambda x, y: self.objective(C, x, y, w_t), self.rate(message.round), rng)
        return state, self.reply(C, message, data, loss)


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedProx's settings."""

    prox_mu: Annotated[
        float, Field(ge=0, le=1e6, description="how strongly a client is held to the global network (μ)")
    ] = 0.1

    def objective(self, C: nn.Module, x: Tensor, y: Tensor, w_t: list[Tensor]) -> Tensor:
        """h(w; w_t) = F(w) + μ/2 ‖w - w_t‖²."""
        apart = [(w - start).square().sum() for w, start in zip(C.parameters(), w_t, strict=True)]
        return super().objective(C, x, y, w_t) + self.prox_mu / 2 * torch.stack(apart).sum()
