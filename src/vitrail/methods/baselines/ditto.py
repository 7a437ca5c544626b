"""Ditto: Fair and Robust Federated Learning Through Personalization; Li, Hu, Beirami, Smith; ICML 2021. Algorithm 1.

All clients train the global model w with FedAvg. In addition, each client k trains a personal model v_k on
F_k(v) + λ/2 ‖v - w_t‖². Both models consist of all of PaDPaF's networks, with its losses and optimizers, as in the
comparison of PaDPaF's paper (λ = 1; with FedProx: prox_mu=1 also keeps the local steps of w near w_t).

Differences from the paper: one round takes `local_epochs` for w and `personal_epochs` for v_k. By default each is a
quarter epoch, so that a round costs a client as much as PaDPaF's half epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from vitrail.data.dataset import Images
from vitrail.methods.base import Model, Reply, ServerMessage, setting
from vitrail.methods.padpaf.algorithm import PaDPaF
from vitrail.methods.padpaf.client_state import load_networks, private_state
from vitrail.methods.padpaf.losses import ProximalTerm
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, finite


@dataclass(frozen=True)
class Ditto(PaDPaF):
    """Ditto with its settings: PaDPaF with everything shared trains w; this class adds v_k."""

    shared: Literal["everything"] = setting("everything", "federated networks: always all of w")
    ditto_lambda: float = setting(1.0, "λ: weight of the term that keeps v_k near w_t (paper: 1)", ge=0, le=1e6)
    local_epochs: float = setting(0.25, "epochs over a client's images per round, for w (ours)", gt=0, le=1e4)
    personal_epochs: float = setting(0.25, "epochs over a client's images per round, for v_k (ours)", gt=0, le=1e4)

    has_personal_models: ClassVar[bool] = True

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Train w_k from w_t as FedAvg does, and v_k with the proximal term."""
        w_k, reply = super().client_round(state.get("global", {}), message, data, rng.child("global"))
        w_t = {name: message.parts[name] for name in self.federated}
        v_k: State = state.get("personal", {})
        nets = load_networks(self.networks(), v_k, {} if v_k else w_t, message.parts["seed"])  # v_k starts at w_t
        personal, proximal = replace(self, local_epochs=self.personal_epochs), ProximalTerm(self.ditto_lambda, w_t)
        training_state, _ = personal.train(nets, v_k, proximal, message.round, data, rng.child("personal"))
        after = {**private_state(nets, ()), **training_state}
        return {"global": w_k, "personal": after if finite(after) else v_k}, reply

    def export_models(self, server: State, client: State | None = None) -> Mapping[str, Model]:
        """Return the generator of w, or of a client's v_k."""
        return super().export_models(client.get("personal", {}) if client else server)
