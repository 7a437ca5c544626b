"""What federated classifiers share: local steps of SGD, a weighted mean, and the server's own few pictures.

They make no pictures. They are what a generator's use is measured against: a classifier trained on what the server grew
(psfedgan) beside one that was itself averaged over the clients. Where the server holds labelled pictures
(server_share), it takes steps on them after every mean; without any, a method is as it was published.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.base import (
    BaseMethod,
    Broadcast,
    Model,
    PartSpec,
    Reply,
    ServerMessage,
    Sums,
    Task,
    clip_weights,
    is_sendable,
)
from vitrail.nets.classifier import classifier, shifted
from vitrail.nets.flat import from_vector, to_vector, vector_size
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

UNIT = 100  # weights count hundreds of pictures
NORM: Literal["group"] = "group"  # means of BatchNorm's statistics fit no client where each has classes of its own

Loss = Callable[[Tensor, Tensor], Tensor]  # of pictures and labels


def descend(
    net: nn.Module, batches: Iterator[gan.Batch], loss: Loss, lr: float, rng: Rng, add: Sequence[Tensor] = ()
) -> float:
    """One step of SGD a batch, with vectors added to the gradients where there are any; returns the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr)
    losses = []
    with one_thread(), torch.enable_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.child("dropout").seed())  # dropout draws from the global state
        net.train()
        for x, y in batches:
            if y is None:
                raise VitrailError("a classifier needs labels")
            value = loss(x, y)
            optimizer.zero_grad()
            value.backward()
            for p, more in zip(net.parameters(), add, strict=False):
                if p.grad is not None:
                    p.grad += more
            optimizer.step()
            losses.append(float(value.detach()))
    return float(np.mean(losses)) if losses else 0.0


@dataclass(frozen=True)
class FederatedClassifier(BaseMethod):
    """A federated classifier's settings, and FedAvg's two halves around what a client does."""

    task: Task
    local_steps: Annotated[int, Field(ge=1, description="steps of SGD on a client in a round")] = 20
    batch_size: Annotated[int, Field(ge=1, description="pictures in a step")] = 16
    lr: Annotated[
        float, Field(gt=0, le=1e3, description="SGD's first learning rate; it falls to nothing over the rounds")
    ] = 0.1
    server_steps: Annotated[
        int, Field(ge=0, description="steps in a round on the server's own pictures, where it has any (server_share)")
    ] = 40

    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 40}

    def net(self) -> nn.Sequential:
        """The classifier, not yet initialised."""
        return classifier(self.task.shape[0], self.task.classes, NORM)

    def rate(self, t: int) -> float:
        """The learning rate of a round, down a cosine."""
        return self.lr * (1 + math.cos(math.pi * t / self.task.rounds)) / 2

    def reply_spec(self) -> Mapping[str, PartSpec]:
        if not self.task.classes:
            raise VitrailError("a classifier needs labels; use data that has some, and labels=auto")
        with torch.device("meta"):
            size = vector_size(self.net())
        one = PartSpec("sum", "float32", 1)
        parts = {
            "network": PartSpec("sum", "float32", size, over="weight"),
            "weight": PartSpec("sum", "float32", 1, least=0),
        }
        return {**parts, "metric.loss": one}

    # -- server ---------------------------------------------------------------------------------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:
        """The network all clients begin with, and the server's own pictures."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(rng.child("network").seed())
            first = gan.init_or_warm_start(start, {"network": to_vector(self.net())})
        has_labels = data is not None and data.labels is not None and len(data)
        return {
            **first,
            "rounds": 0,
            "real": {"pixels": data.pixels, "labels": data.labels} if data and has_labels else None,
        }

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """The global network."""
        return Broadcast({"network": ("float32", server["network"])})

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """FedAvg: the weighted mean of clients' changes; then the server's own steps."""
        t = server["rounds"]
        with np.errstate(divide="ignore", invalid="ignore"):  # weights of nothing make a round that is not closed
            moved = server["network"] + sums.values["network"] / sums.values["weight"][0]
        after = {**server, "network": clip_weights(moved.astype(np.float32)), "rounds": t + 1}
        if server["real"] is None or not self.server_steps or not np.isfinite(moved).all():
            return after
        C = from_vector(self.net(), after["network"])
        real = Images(server["real"]["pixels"], server["real"]["labels"])
        batches = self.draws(real, self.server_steps, rng.child("server"), "cpu")
        descend(C, batches, lambda x, y: F.cross_entropy(C(x), y), self.rate(t), rng)
        trained = to_vector(C)  # where the mean is such that its own steps overflow, the server leaves them out
        return {**after, "network": clip_weights(trained)} if np.isfinite(trained).all() else after

    def export_models(self, server: State, client: State | None = None) -> Mapping[str, Model]:  # noqa: ARG002
        """The global classifier."""
        weights = from_vector(self.net(), server["network"]).state_dict()
        about = {"shape": list(self.task.shape), "classes": self.task.classes, "norm": NORM}
        return {"classifier": Model("classifier", {**about, "weights": weights})}

    # -- client ---------------------------------------------------------------------------------------------------

    def draws(self, data: Images, steps: int, rng: Rng, device: str) -> Iterator[gan.Batch]:
        """Batches of some pictures, drawn with replacement, each picture moved by up to two pixels."""
        draw, task = rng.child("draws").torch(), Task(self.task.shape, self.task.classes, 1, 1, device)
        for _ in range(steps):
            pick = torch.randint(len(data), (min(self.batch_size, len(data)),), generator=draw).numpy()
            x, y = gan.pictures(data, pick, task)
            yield shifted(x, draw), y

    def opened(self, vector: NDArray[np.float32]) -> nn.Module:
        """The network as it was received."""
        return from_vector(self.net(), vector).to(self.task.device)

    def weight(self, data: Images) -> float:
        """How much a client counts: by its pictures."""
        return len(data) / UNIT

    def reply(self, C: nn.Module, message: ServerMessage, data: Images, loss: float, **more: Any) -> Reply:
        """What changed, times the client's weight; nothing where training went beyond what can be sent."""
        n = np.float32(self.weight(data))
        moved = (to_vector(C) - message.parts["network"]) * n
        if not is_sendable(moved):
            moved = np.zeros_like(moved)
        return Reply({"network": moved, "weight": np.array([n]), "metric.loss": np.array([loss]), **more})
