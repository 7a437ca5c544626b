"""Base of the federated classifiers (FedAvg, FedProx, SCAFFOLD, NaiveMix, FedMix, SDA-FL), and FedAvg's server.

They generate no images: PS-FedGAN compares its classifier with them. A subclass implements `client_round`.

Differences from the papers: a fixed number of local steps in place of epochs, so that all clients do the same work; the
learning rate decays over the rounds; images are shifted by up to two pixels; GroupNorm; a server with labelled images
(server_fraction) trains on them after each average; FedProx weights models by numbers of images, as FedAvg does, where
its Algorithm 2 selects clients with these probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.base import BaseMethod, clip_weights, is_sendable, setting
from vitrail.methods.messages import Broadcast, PartSpec, Reply, ServerMessage, Sums, Task
from vitrail.models.model import Model
from vitrail.nets.classifier import build_classifier, random_shift
from vitrail.nets.flat import from_vector, on_meta, to_vector, vector_size
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

UNIT = 100  # a weight of 1 is 100 images
NORM: Literal["group"] = "group"  # averaged BatchNorm statistics fit no client where each has its own classes

Loss = Callable[[Tensor, Tensor], Tensor]  # of images and labels


def train_sgd(
    net: nn.Module, batches: Iterator[gan.Batch], loss: Loss, lr: float, rng: Rng, correction: Sequence[Tensor] = ()
) -> float:
    """Take one step of SGD per batch and return the mean loss.

    Args:
        net: The network; it is trained in place.
        batches: Images and labels.
        loss: The loss of a batch.
        lr: The learning rate.
        rng: Randomness of dropout.
        correction: Tensors added to the gradients, one per parameter; none by default.

    Raises:
        VitrailError: If a batch has no labels.
    """
    optimizer = torch.optim.SGD(net.parameters(), lr)
    losses = []
    with one_thread(), torch.enable_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.child("dropout").seed())  # dropout uses the global state
        net.train()
        for x, y in batches:
            if y is None:
                raise VitrailError("a classifier needs labels")
            value = loss(x, y)
            optimizer.zero_grad()
            value.backward()
            for p, more in zip(net.parameters(), correction, strict=False):
                if p.grad is not None:
                    p.grad += more
            optimizer.step()
            losses.append(float(value.detach()))
    return float(np.mean(losses)) if losses else 0.0


@dataclass(frozen=True)
class FederatedClassifier(BaseMethod):
    """Settings of a federated classifier, and FedAvg except for the client's training."""

    task: Task
    local_steps: int = setting(20, "SGD steps of a client per round (ours)", ge=1)
    batch_size: int = setting(16, "images per step", ge=1)
    lr: float = setting(0.1, "SGD's learning rate; it decays to zero over the rounds (cosine)", gt=0, le=1e3)
    server_steps: int = setting(
        40, "steps per round on the server's own images, if it has any (server_fraction) (ours)", ge=0
    )

    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 40}

    def net(self) -> nn.Sequential:
        """Build the classifier, not yet initialized."""
        return build_classifier(self.task.shape[0], self.task.classes, NORM)

    def load_net(self, vector: NDArray[np.float32]) -> nn.Module:
        """Build the classifier with the weights of a vector, on the task's device."""
        return from_vector(self.net(), vector).to(self.task.device)

    def learning_rate(self, t: int) -> float:
        """Return the learning rate of round t."""
        return self.lr * (1 + math.cos(math.pi * t / self.task.rounds)) / 2

    def batches(self, data: Images, steps: int, rng: Rng, device: str) -> Iterator[gan.Batch]:
        """Draw batches with replacement; images are shifted by up to two pixels."""
        draw, task = rng.child("draws").torch(), Task(self.task.shape, self.task.classes, 1, 1, device)
        for _ in range(steps):
            pick = torch.randint(len(data), (min(self.batch_size, len(data)),), generator=draw).numpy()
            x, y = gan.image_batch(data, pick, task)
            yield random_shift(x, draw), y

    def reply_spec(self) -> Mapping[str, PartSpec]:
        if not self.task.classes:
            raise VitrailError("a classifier needs labels; use labelled data and labels=auto")
        return {
            "network": PartSpec("sum", "float32", vector_size(on_meta(self.net)), over="weight"),
            "weight": PartSpec("sum", "float32", 1, least=0),
            "metric.loss": PartSpec("sum", "float32", 1),
        }

    # -- server ---------------------------------------------------------------------------------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:
        """Initialize w_0, and store the server's own images."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(rng.child("network").seed())
            first = gan.init_or_warm_start(start, {"network": to_vector(self.net())})
        usable = data is not None and data.labels is not None and len(data)
        real = {"pixels": data.pixels, "labels": data.labels} if data is not None and usable else None
        return {**first, "rounds": 0, "real": real}

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """Send w_t."""
        return Broadcast({"network": ("float32", server["network"])})

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """w_{t+1} <- w_t + Σ n_k Δ_k / Σ n_k; then train on the server's own images."""
        t = server["rounds"]
        average = server["network"] + gan.weighted_mean(sums, "network")
        after = {**server, "network": clip_weights(average.astype(np.float32)), "rounds": t + 1}
        if server["real"] is None or not self.server_steps or not np.isfinite(average).all():
            return after
        C = from_vector(self.net(), after["network"])
        real = Images(server["real"]["pixels"], server["real"]["labels"])
        batches = self.batches(real, self.server_steps, rng.child("server"), "cpu")
        train_sgd(C, batches, lambda x, y: F.cross_entropy(C(x), y), self.learning_rate(t), rng)
        trained = to_vector(C)  # clients may send weights with which training overflows: then it is skipped
        return {**after, "network": clip_weights(trained)} if np.isfinite(trained).all() else after

    def export_models(self, server: State, client: State | None = None) -> Mapping[str, Model]:  # noqa: ARG002
        """Return the global classifier."""
        weights = from_vector(self.net(), server["network"]).state_dict()
        about = {"shape": list(self.task.shape), "classes": self.task.classes, "norm": NORM}
        return {"classifier": Model("classifier", {**about, "weights": weights})}

    # -- client ---------------------------------------------------------------------------------------------------

    def train(
        self, C: nn.Module, loss: Loss, data: Images, t: int, rng: Rng, correction: Sequence[Tensor] = ()
    ) -> float:
        """Take the local steps of round t on a client's images; return the mean loss."""
        batches = self.batches(data, self.local_steps, rng, self.task.device)
        return train_sgd(C, batches, loss, self.learning_rate(t), rng, correction)

    def weight(self, data: Images) -> float:
        """Return n_k, a client's weight in the average: its number of images."""
        return len(data) / UNIT

    def make_reply(self, C: nn.Module, message: ServerMessage, data: Images, loss: float, **more: Any) -> Reply:
        """Return n_k Δ_k and n_k; Δ_k is zero if training diverged beyond what can be sent."""
        n = np.float32(self.weight(data))
        change = (to_vector(C) - message.parts["network"]) * n
        if not is_sendable(change):
            change = np.zeros_like(change)
        return Reply({"network": change, "weight": np.array([n]), "metric.loss": np.array([loss]), **more})
