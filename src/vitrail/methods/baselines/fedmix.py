"""FedMix: Approximation of Mixup under Mean Augmented Federated Learning, Yoon, Shin, Hwang, Yang; ICLR 2021.

Once, every client shares means of M of its pictures and of their labels; from then on all clients hold everybody's
means (x̄, ȳ). NaiveMix is mixup with them: the loss of (1-λ) x + λ x̄ under both labels. FedMix is a first-order
approximation of mixup with the pictures behind the means (Eq. 4):

    (1-λ) ℓ(f((1-λ)x), y) + λ ℓ(f((1-λ)x), ȳ) + λ <∂ℓ/∂x, x̄>,   ∂ℓ/∂x at ((1-λ)x, y).

Means of a few pictures show much of them, and of one class nearly all: nothing here is private. What differs from the
paper: a client shares at most `means` of them, so that the pool does not grow with its pictures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from vitrail.data.dataset import Images
from vitrail.methods.base import LAST_COUNTED, Broadcast, PartSpec, Reply, ServerMessage, Sums
from vitrail.methods.baselines import shared_pool as pool
from vitrail.methods.baselines.classification import FederatedClassifier, descend
from vitrail.nets.feature_moments import to_float
from vitrail.utils.errors import Malformed
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire.codecs import Array

CODECS = {"means": "bytes", "mean_labels": "float32"}


@dataclass(frozen=True)
class NaiveMix(FederatedClassifier):
    """NaiveMix's settings."""

    images_per_mean: Annotated[int, Field(ge=1, description="pictures in one mean (M)")] = 10
    max_means: Annotated[int, Field(ge=1, le=100_000, description="means that a client shares, at most")] = 60
    mix_lambda: Annotated[float, Field(ge=0, lt=1, description="how much of a mean is mixed in (λ)")] = 0.1

    @property
    def needs_ack(self) -> bool:
        return True

    def reply_spec(self) -> Mapping[str, PartSpec]:
        c, h, w = self.task.shape
        bounds = {"means": self.max_means * c * h * w, "mean_labels": 4 * self.max_means * self.task.classes}
        shapes = {"means": (None, c, h, w), "mean_labels": (None, self.task.classes)}
        shared = {n: PartSpec("each", CODECS[n], None, limit_bytes=bounds[n], shape=shapes[n]) for n in CODECS}
        shared["mean_labels"] = replace(shared["mean_labels"], least=0, limit=1)
        return {**super().reply_spec(), **shared}

    # -- server ---------------------------------------------------------------------------------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:
        return {**super().server_init(rng, data, start), "shares": {}, "pool": pool.gathered({})}

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """The network, and all means to a client that lacks them."""
        return pool.outgoing({"network": ("float32", server["network"])}, server["pool"], CODECS, full)

    def receive(self, server: State, client: str, parts: Mapping[str, Array]) -> State:
        """A client's means, which it sends once."""
        rows = len(parts["means"])
        if len(parts["mean_labels"]) != rows:
            raise Malformed(f"{rows:,} means and labels of {len(parts['mean_labels']):,}")
        if not parts["means"].size:
            return server
        share: dict[str, Array] = {"means": parts["means"]}
        share["mean_labels"] = parts["mean_labels"]
        return {**server, "shares": {**server["shares"], client: share}}

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """FedAvg's mean, and the pool as it now is."""
        return {**super().finish_round(server, sums, rng), "pool": pool.gathered(server["shares"])}

    # -- client ---------------------------------------------------------------------------------------------------

    def averaged(self, data: Images, rng: Rng) -> dict[str, Array]:
        """Means of M pictures and of their labels, as 8 bits and as float32."""
        order = rng.child("means").numpy().permutation(len(data))[: self.images_per_mean * self.max_means]
        groups = np.array_split(order, -(-len(order) // self.images_per_mean))
        labels = np.eye(self.task.classes, dtype=np.float32)[data.labels]
        means = [data.pixels[g].mean(0).round().astype(np.uint8) for g in groups]
        return {"means": np.stack(means), "mean_labels": np.stack([labels[g].mean(0) for g in groups])}

    def loss(self, C: nn.Module, x: Tensor, y: Tensor, mean: Tensor, label: Tensor) -> Tensor:
        """Mixup with means: both labels of what is mixed."""
        logits = C((1 - self.mix_lambda) * x + self.mix_lambda * mean)
        return (1 - self.mix_lambda) * F.cross_entropy(logits, y) + self.mix_lambda * F.cross_entropy(logits, label)

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Local steps with the means that are known, and this client's own until the server has them."""
        held = {n: message.parts[n] for n in CODECS if n in message.parts} or state.get("pool", {})
        own = state.get("own") or self.averaged(data, rng)  # drawn once: other means would tell more
        none = {n: np.empty(0, np.uint8 if n == "means" else np.float32) for n in CODECS}
        sent = none if LAST_COUNTED in message.parts else own
        C = self.opened(message.parts["network"])
        draw = rng.child("partners").torch()
        means = torch.from_numpy(held["mean_labels"].reshape(-1, self.task.classes).copy()) if held else None
        pixels = held["means"].reshape(-1, *self.task.shape) if held else None

        def loss(x: Tensor, y: Tensor) -> Tensor:
            if means is None or pixels is None:
                return F.cross_entropy(C(x), y)
            pick = torch.randint(len(means), (len(x),), generator=draw)
            return self.loss(C, x, y, to_float(pixels[pick.numpy()]).to(x.device), means[pick].to(x.device))

        batches = self.draws(data, self.local_steps, rng, self.task.device)
        value = descend(C, batches, loss, self.rate(message.round), rng)
        reply = self.reply(C, message, data, value, **sent)
        return {"own": own, "pool": held}, Reply(reply.parts, holds=pool.name_of(held))


@dataclass(frozen=True)
class FedMix(NaiveMix):
    """FedMix's settings."""

    def loss(self, C: nn.Module, x: Tensor, y: Tensor, mean: Tensor, label: Tensor) -> Tensor:
        """Eq. 4."""
        x = ((1 - self.mix_lambda) * x).requires_grad_()
        logits = C(x)
        own = F.cross_entropy(logits, y)
        (slope,) = torch.autograd.grad(own, x, create_graph=True)
        return (
            (1 - self.mix_lambda) * own
            + self.mix_lambda * F.cross_entropy(logits, label)
            + self.mix_lambda * (slope * mean).sum()
        )
