"""NaiveMix and FedMix: mixup with means of other clients' images.

Yoon, Shin, Hwang, Yang: FedMix: Approximation of Mixup under Mean Augmented Federated Learning; ICLR 2021. Once, each
client shares means (x̄, ȳ) of M of its images and of their labels, and every client receives all of them. NaiveMix is
mixup with the means: the loss of (1-λ)x + λx̄ under both labels. FedMix approximates, to first order, mixup with the
images behind the means (Eq. 4):

    (1-λ) ℓ(f((1-λ)x), y) + λ ℓ(f((1-λ)x), ȳ) + λ <∂ℓ/∂x, x̄>,   ∂ℓ/∂x at ((1-λ)x, y).

A mean of a few images, or of one class, shows much of them: nothing here is private.

Differences from the paper: those in classification.py; a client shares at most `max_means` means, so that the pool does
not grow with its number of images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data.dataset import Images
from vitrail.methods.base import setting
from vitrail.methods.baselines import shared_pool
from vitrail.methods.baselines.classification import FederatedClassifier
from vitrail.methods.messages import LAST_COUNTED, Broadcast, PartSpec, Reply, ServerMessage, Sums
from vitrail.nets.feature_moments import to_float
from vitrail.utils.errors import Malformed
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire.codecs import Array

CODECS = {"means": "bytes", "mean_labels": "float32"}


@dataclass(frozen=True)
class NaiveMix(FederatedClassifier):
    """NaiveMix: FedAvg, with mixup of local images and shared means."""

    images_per_mean: int = setting(10, "images per mean (M)", ge=1)
    max_means: int = setting(60, "largest number of means that a client shares (ours)", ge=1, le=100_000)
    mix_lambda: float = setting(0.1, "weight λ of the means in mixup", ge=0, lt=1)

    needs_ack: ClassVar[bool] = True

    def reply_spec(self) -> Mapping[str, PartSpec]:
        (c, h, w), classes, n = self.task.shape, self.task.classes, self.max_means
        means = PartSpec("each", CODECS["means"], None, limit_bytes=n * c * h * w, shape=(None, c, h, w))
        labels = PartSpec(
            "each", CODECS["mean_labels"], None, limit=1, least=0, limit_bytes=4 * n * classes, shape=(None, classes)
        )
        return {**super().reply_spec(), "means": means, "mean_labels": labels}

    # -- client ---------------------------------------------------------------------------------------------------

    def compute_means(self, data: Images, rng: Rng) -> dict[str, Array]:
        """Return means of M images, rounded to 8 bits, and of their one-hot labels."""
        order = rng.child("means").numpy().permutation(len(data))[: self.images_per_mean * self.max_means]
        groups = np.array_split(order, -(-len(order) // self.images_per_mean))
        labels = np.eye(self.task.classes, dtype=np.float32)[data.labels]
        means = [data.pixels[g].mean(0).round().astype(np.uint8) for g in groups]
        return {"means": np.stack(means), "mean_labels": np.stack([labels[g].mean(0) for g in groups])}

    def loss(self, C: nn.Module, x: Tensor, y: Tensor, x_mean: Tensor, y_mean: Tensor) -> Tensor:
        """Return the loss of mixup with means."""
        logits = C((1 - self.mix_lambda) * x + self.mix_lambda * x_mean)
        return (1 - self.mix_lambda) * F.cross_entropy(logits, y) + self.mix_lambda * F.cross_entropy(logits, y_mean)

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Take local steps with the means of the pool; send this client's means until the server has them."""
        pool = {n: message.parts[n] for n in CODECS if n in message.parts} or state.get("pool", {})
        own = state.get("own") or self.compute_means(data, rng)  # computed once: other means would reveal more
        nothing = {n: np.empty(0, np.uint8 if n == "means" else np.float32) for n in CODECS}
        sent = nothing if LAST_COUNTED in message.parts else own
        C = self.load_net(message.parts["network"])
        draw = rng.child("partners").torch()
        y_means = torch.from_numpy(pool["mean_labels"].reshape(-1, self.task.classes).copy()) if pool else None
        x_means = pool["means"].reshape(-1, *self.task.shape) if pool else None

        def loss(x: Tensor, y: Tensor) -> Tensor:
            if y_means is None or x_means is None:
                return F.cross_entropy(C(x), y)
            pick = torch.randint(len(y_means), (len(x),), generator=draw)
            return self.loss(C, x, y, to_float(x_means[pick.numpy()]).to(x.device), y_means[pick].to(x.device))

        mean_loss = self.train(C, loss, data, message.round, rng)
        reply = self.make_reply(C, message, data, mean_loss, **sent)
        return {"own": own, "pool": pool}, Reply(reply.parts, state_id=shared_pool.pool_digest(pool))

    # -- server ---------------------------------------------------------------------------------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:
        """Initialize w_0 and an empty pool."""
        return {**super().server_init(rng, data, start), "shares": {}, "pool": shared_pool.collect({})}

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """Send w_t, and all means to a client that does not have them."""
        return shared_pool.broadcast({"network": ("float32", server["network"])}, server["pool"], CODECS, full)

    def receive(self, server: State, client: str, parts: Mapping[str, Array]) -> State:
        """Store a client's means, which it sends once."""
        n, n_labels = len(parts["means"]), len(parts["mean_labels"])
        if n != n_labels:
            raise Malformed(f"{n:,} means with labels of {n_labels:,}; expected as many labels as means")
        if not parts["means"].size:
            return server
        return {**server, "shares": {**server["shares"], client: {name: parts[name] for name in CODECS}}}

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """Average as FedAvg, and update the pool."""
        return {**super().finish_round(server, sums, rng), "pool": shared_pool.collect(server["shares"])}


@dataclass(frozen=True)
class FedMix(NaiveMix):
    """FedMix: NaiveMix with the loss of Eq. 4."""

    def loss(self, C: nn.Module, x: Tensor, y: Tensor, x_mean: Tensor, y_mean: Tensor) -> Tensor:
        """Return the loss of Eq. 4."""
        x = ((1 - self.mix_lambda) * x).requires_grad_()
        logits = C(x)
        own = F.cross_entropy(logits, y)
        (gradient,) = torch.autograd.grad(own, x, create_graph=True)
        return (
            (1 - self.mix_lambda) * own
            + self.mix_lambda * F.cross_entropy(logits, y_mean)
            + self.mix_lambda * (gradient * x_mean).sum()
        )
