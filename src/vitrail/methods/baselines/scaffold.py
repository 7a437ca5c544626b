"""SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, Karimireddy et al.; ICML 2020.

Every client has a control variate c_i, the server their mean c. Local steps go along g - c_i + c, so that clients whose
pictures pull apart still move together; after K steps of rate η a client sets c_i+ = c_i - c + (x - y) / (K η) (option
II) and sends what changed of y and of c_i (Algorithm 1). The server's rate is 1, and all clients count the same.

c is the mean of all c_i as long as both sides change them together: where a reply was lost, or its round not closed,
the client goes back to the c_i that the server's c has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.dataset import Images
from vitrail.methods.base import (
    LAST_COUNTED,
    Broadcast,
    PartSpec,
    Reply,
    ServerMessage,
    Sums,
    clip_weights,
    is_sendable,
)
from vitrail.methods.baselines.classification import FederatedClassifier, descend
from vitrail.nets.flat import to_vector
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire.codecs import Array


@dataclass(frozen=True)
class Scaffold(FederatedClassifier):
    """SCAFFOLD's settings: those of all federated classifiers."""

    @property
    def needs_ack(self) -> bool:
        return True

    def reply_spec(self) -> Mapping[str, PartSpec]:
        parts = super().reply_spec()
        return {**parts, "control": PartSpec("sum", "float32", parts["network"].size)}

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:
        first = super().server_init(rng, data, start)
        return {**first, "control": np.zeros_like(first["network"])}

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """(x, c)."""
        return Broadcast({"network": ("float32", server["network"]), "control": ("float32", server["control"])})

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """x <- x + mean of Δy; c <- c + |S|/N mean of Δc."""
        moved = server["control"] + sums.values["control"] / self.task.clients
        return {**super().finish_round(server, sums, rng), "control": clip_weights(moved.astype(np.float32))}

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """K steps along g - c_i + c, then option II."""
        x, c = message.parts["network"], message.parts["control"]
        counted = message.parts.get(LAST_COUNTED)
        lost = state and (counted is None or counted[0] != state["round"])
        c_i = state["before" if lost else "control"] if state else np.zeros_like(c)
        y = self.opened(x)
        rate, correction = self.rate(message.round), _like(list(y.parameters()), c - c_i)
        batches = self.draws(data, self.local_steps, rng, self.task.device)
        loss = descend(y, batches, lambda a, b: F.cross_entropy(y(a), b), rate, rng, correction)
        after = (c_i - c + (x - to_vector(y)) / (self.local_steps * rate)).astype(np.float32)
        if not is_sendable(to_vector(y) - x, after - c_i):  # the reply says that nothing changed, so c_i is as it was
            after, y = np.asarray(c_i, np.float32), self.opened(x)
        kept: State = {"control": after, "before": c_i, "round": message.round}
        return kept, self.reply(y, message, data, loss, control=after - c_i)

    def weight(self, data: Images) -> float:  # noqa: ARG002
        """Every client counts the same."""
        return 1.0


def _like(tensors: list[Tensor], vector: Array) -> list[Tensor]:
    """A vector in the shapes of a network's weights; GroupNorm has no state beside them."""
    pieces = torch.from_numpy(np.array(vector, np.float32)).split([t.numel() for t in tensors])
    return [piece.view_as(t).to(t.device) for piece, t in zip(pieces, tensors, strict=True)]
