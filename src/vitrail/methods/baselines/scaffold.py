"""SCAFFOLD for classifiers.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning; ICML
2020. Each client i has a control variate c_i, the server their mean c. Local steps follow g - c_i + c, which corrects
the drift of clients with different data. After K steps of rate η, c_i+ = c_i - c + (x - y_i) / (K η) (option II), and
the client sends the changes of y_i and c_i (Algorithm 1).

Differences from the paper: those in classification.py; the server's learning rate is 1. If a reply was lost or its
round discarded, the client returns to the c_i that is part of the server's c, so that c stays the mean of all c_i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.dataset import Images
from vitrail.methods.base import clip_weights, is_sendable
from vitrail.methods.baselines.classification import FederatedClassifier
from vitrail.methods.messages import LAST_COUNTED, Broadcast, PartSpec, Reply, ServerMessage, Sums
from vitrail.nets.flat import to_vector
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire.codecs import Array


@dataclass(frozen=True)
class Scaffold(FederatedClassifier):
    """SCAFFOLD (Algorithm 1, option II)."""

    needs_ack: ClassVar[bool] = True

    def reply_spec(self) -> Mapping[str, PartSpec]:
        parts = super().reply_spec()
        return {**parts, "control": PartSpec("sum", "float32", parts["network"].size)}

    def weight(self, data: Images) -> float:  # noqa: ARG002
        """Return 1: all clients have the same weight."""
        return 1.0

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:
        """Initialize x, and c = 0."""
        first = super().server_init(rng, data, start)
        return {**first, "control": np.zeros_like(first["network"])}

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """Send (x, c)."""
        return Broadcast({"network": ("float32", server["network"]), "control": ("float32", server["control"])})

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """K local steps along g - c_i + c, then option II."""
        x, c = message.parts["network"], message.parts["control"]
        counted = message.parts.get(LAST_COUNTED)
        lost = state and (counted is None or counted[0] != state["round"])
        c_i = state["before" if lost else "control"] if state else np.zeros_like(c)
        y_i = self.load_net(x)
        lr, correction = self.learning_rate(message.round), _split_like(list(y_i.parameters()), c - c_i)
        loss = self.train(y_i, lambda a, b: F.cross_entropy(y_i(a), b), data, message.round, rng, correction)
        c_plus = (c_i - c + (x - to_vector(y_i)) / (self.local_steps * lr)).astype(np.float32)
        if not is_sendable(to_vector(y_i) - x, c_plus - c_i):  # diverged: no change of y_i, so none of c_i
            c_plus, y_i = np.asarray(c_i, np.float32), self.load_net(x)
        after: State = {"control": c_plus, "before": c_i, "round": message.round}
        return after, self.make_reply(y_i, message, data, loss, control=c_plus - c_i)

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """x <- x + mean of Δy_i; c <- c + |S|/N mean of Δc_i."""
        c = server["control"] + sums.values["control"] / self.task.clients
        return {**super().finish_round(server, sums, rng), "control": clip_weights(c.astype(np.float32))}


def _split_like(tensors: list[Tensor], vector: Array) -> list[Tensor]:
    """Split a vector into the shapes of a network's parameters; GroupNorm has no other state."""
    pieces = torch.from_numpy(np.array(vector, np.float32)).split([t.numel() for t in tensors])
    return [piece.view_as(t).to(t.device) for piece, t in zip(pieces, tensors, strict=True)]
