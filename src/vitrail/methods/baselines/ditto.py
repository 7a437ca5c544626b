"""Ditto: Fair and Robust Federated Learning Through Personalization, Li, Hu, Beirami, Smith; ICML 2021.

Beside the global model w, which all clients train together, each has a personal one v_k that it trains on
F_k(v) + λ/2 ‖v - w_t‖². Here with PaDPaF's networks, losses and optimisers (padpaf.py), all of them in both models, as
PaDPaF's paper compares (λ = 1; with FedProx prox_mu=1 holds w's local steps to w_t as well).

A round is `local_epochs` of steps for w and `personal_epochs` for v_k. Each step passes through as many networks as one
of PaDPaF does, so by default, a quarter epoch each, a round costs a client what PaDPaF's half epoch does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field

from vitrail.data.dataset import Images
from vitrail.methods.base import Model, Reply, ServerMessage
from vitrail.methods.padpaf.algorithm import PaDPaF
from vitrail.methods.padpaf.partial_federation import ProximalTerm, closed
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, finite


@dataclass(frozen=True)
class Ditto(PaDPaF):
    """Ditto's settings."""

    shared: Annotated[Literal["everything"], Field(description="what is federated: all of w, always")] = "everything"
    ditto_lambda: Annotated[float, Field(ge=0, le=1e6, description="λ of Ditto: how strongly v_k is held to w_t")] = 1.0
    local_epochs: Annotated[
        float, Field(gt=0, le=1e4, description="passes over a client's pictures in a round, for w")
    ] = 0.25
    personal_epochs: Annotated[float, Field(gt=0, le=1e4, description="the same for the personal v_k")] = 0.25

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Algorithm 1: w_k by FedAvg's steps from w_t, and v_k by its own, held to w_t."""
        w_k, reply = super().client_round(state.get("global", {}), message, data, rng.child("global"))
        w_t = {name: message.parts[name] for name in self.federated}
        v_k: State = state.get("personal", {})
        nets = self.opened(v_k, {} if v_k else w_t, message)  # v_k begins where w is
        own = replace(self, local_epochs=self.personal_epochs)
        kept, _ = own.learn(nets, v_k, ProximalTerm(self.ditto_lambda, w_t), message.round, data, rng.child("personal"))
        after = {**closed(nets, ()), **kept}
        return {"global": w_k, "personal": after if finite(after) else v_k}, reply

    def export_models(self, server: State, client: State | None = None) -> Mapping[str, Model]:
        """w, or a client's v_k."""
        return super().export_models(client["personal"] if client else server)
