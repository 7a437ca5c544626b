"""Federated Generative Adversarial Learning: FedAvg on a conditional GAN, with four ways to synchronise.

Fan, Liu; 2020. Every round a few clients train G and D on their own pictures (Eq. 2 and 3) and upload both; the server
averages. What clients take back is the `sync`: both ("d&g"), G alone ("g"), D alone ("d"), nothing ("none"). What a
client does not take back stays its own, with its optimiser, in its private state.

What differs from the paper: G's loss is the usual non-saturating one (g_loss="minimax" is Eq. 3); clients are weighted
by their number of pictures (weights="uniform" is the paper's mean); with upload="synced" only what is synchronised
travels up, which is what the paper's halved cost of Sync G means in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from vitrail.data.pictures import Pictures
from vitrail.errors import VitrailError
from vitrail.methods.base import Declared, Incoming, Model, Outgoing, Reply, Simple, Sums, Task
from vitrail.nets.dcgan import Discriminator, Generator, initialise
from vitrail.nets.flat import from_vector, to_vector, vector_size
from vitrail.nets.moments import to_float
from vitrail.rng import Rng
from vitrail.state import State
from vitrail.wire.message import NO_BASE, digest

UNIT = 100  # weights count hundreds of pictures, so that weighted values fit float16 for few and for many


@dataclass(frozen=True)
class FedGan(Simple):
    """The federated GAN's settings."""

    task: Task
    sync: Annotated[Literal["d&g", "g", "d", "none"], Field(description="what clients take back from the server")] = (
        "d&g"
    )
    upload: Annotated[
        Literal["both", "synced"], Field(description="send both networks up, or what is synchronised")
    ] = "both"
    width: Annotated[int, Field(ge=4, le=512, description="channels of the layer nearest to the picture")] = 32
    z: Annotated[int, Field(ge=1, le=4096, description="noise dimensions")] = 100
    local_epochs: Annotated[int, Field(ge=1, description="passes over a client's pictures in a round")] = 1
    batch: Annotated[int, Field(ge=2, description="pictures in a step")] = 64
    lr: Annotated[float, Field(gt=0, description="Adam's learning rate")] = 2e-4
    beta1: Annotated[float, Field(ge=0, lt=1, description="Adam's first average; DCGAN's 0.5")] = 0.5
    g_loss: Annotated[Literal["nonsaturating", "minimax"], Field(description="the generator's loss")] = "nonsaturating"
    weights: Annotated[Literal["examples", "uniform"], Field(description="how much a client counts")] = "examples"
    wire: Annotated[Literal["float32", "float16"], Field(description="how weights travel")] = "float32"

    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 60}

    def nets(self) -> dict[str, nn.Module]:
        """G and D, not yet initialised."""
        t = self.task
        g, d = (
            Generator(t.shape, t.classes, self.width, self.z),
            Discriminator(t.shape, t.classes, self.width),
        )
        return {"generator": g, "discriminator": d}

    @property
    def synced(self) -> tuple[str, ...]:
        """The networks that clients take back."""
        both = ("generator", "discriminator")
        return {"d&g": both, "g": both[:1], "d": both[1:], "none": ()}[self.sync]

    @property
    def uploaded(self) -> tuple[str, ...]:
        """The networks that clients send; the generator always, or there would be no product."""
        return (
            ("generator", "discriminator")
            if self.upload == "both"
            else tuple({"generator": 0, **dict.fromkeys(self.synced)})
        )

    def declares(self) -> Mapping[str, Declared]:
        with torch.device("meta"):
            nets = self.nets()
        parts = {name: Declared("sum", self.wire, vector_size(nets[name])) for name in self.uploaded}
        one = Declared("sum", "float32", 1)
        return {**parts, "weight": Declared("sum", "float32", 1, least=0), "metric.loss_g": one, "metric.loss_d": one}

    # -- server ---------------------------------------------------------------------------------------------------

    def server_init(self, rng: Rng, data: Pictures | None = None, start: State | None = None) -> State:  # noqa: ARG002
        """The networks all clients begin with."""
        nets = self.nets()
        first = {name: to_vector(initialise(net, rng.child(name).torch())) for name, net in nets.items()}
        if start is not None:
            if any(start[name].shape != first[name].shape for name in first):
                raise VitrailError("from= names a run with another width, picture size or labels; take one like this")
            first = {name: start[name] for name in first}
        return {**first, "initial": {name: first[name] for name in first if name not in self.synced}}

    def broadcast(self, server: State, client: str, full: bool) -> Outgoing:  # noqa: ARG002
        """The synchronised networks; to a client that holds none yet, also the others, as everyone began with them."""
        told = {name: server[name] for name in self.synced} | (server["initial"] if full else {})
        base = NO_BASE if full or not server["initial"] else digest("networks")
        return Outgoing({name: (self.wire, vector) for name, vector in told.items()}, base)

    def close_round(self, server: State, sums: Sums, rng: Rng) -> State:  # noqa: ARG002
        """FedAvg: the weighted mean of what clients sent."""
        with np.errstate(divide="ignore", invalid="ignore"):  # weights of nothing make a round that is not closed
            means = {n: (sums.values[n] / sums.values["weight"][0]).astype(np.float32) for n in self.uploaded}
        return {**server, **means}

    def products(self, server: State, client: State | None = None) -> Mapping[str, Model]:
        """The central generator, or a client's own."""
        net = self.nets()["generator"]
        from_vector(net, client["generator"] if client else server["generator"])
        t = self.task
        about = {"shape": list(t.shape), "classes": t.classes, "width": self.width, "z": self.z}
        return {"generator": Model("dcgan", {**about, "weights": net.state_dict()})}

    # -- client ---------------------------------------------------------------------------------------------------

    def client_round(self, state: State, message: Incoming, data: Pictures, rng: Rng) -> tuple[State, Reply]:
        """Algorithm 1, client side: one or more epochs of Eq. 2 and 3 on the client's own pictures."""
        device, classes = self.task.device, self.task.classes
        nets, optimizers = self.nets(), {}
        for name, net in nets.items():
            own = name in state and name not in self.synced  # what is not synchronised stays the client's
            from_vector(net, state[name] if own else message.parts[name])
            net.to(device).train()
            optimizers[name] = torch.optim.Adam(net.parameters(), self.lr, (self.beta1, 0.999))
            if state:  # a client keeps its own optimiser
                optimizers[name].load_state_dict(state["optimizers"][name])
        G, D = nets["generator"], nets["discriminator"]
        draw = rng.child("training").torch()
        losses = []
        for x, y in self.batches(data, rng):
            m = len(x)
            real = torch.ones(m, device=device)
            z = torch.randn(m, self.z, generator=draw).to(device)
            y_fake = torch.randint(classes, (m,), generator=draw).to(device) if classes else None
            fake = G(z, y_fake)

            loss_d = _bce(D(x, y), real) + _bce(D(fake.detach(), y_fake), 1 - real)  # Eq. 2
            _step(optimizers["discriminator"], loss_d)
            says = D(fake, y_fake)
            loss_g = _bce(says, real) if self.g_loss == "nonsaturating" else -_bce(says, 1 - real)  # Eq. 3
            _step(optimizers["generator"], loss_g)
            losses.append(torch.stack([loss_g.detach(), loss_d.detach()]))

        vectors = {name: to_vector(net) for name, net in nets.items()}
        n = np.float32(len(data) / UNIT if self.weights == "examples" else 1.0)
        loss = torch.stack(losses).mean(0)
        parts: dict[str, NDArray[Any]] = {name: vectors[name] * n for name in self.uploaded}
        parts |= {
            "weight": np.array([n]),
            "metric.loss_g": loss[:1].cpu().numpy(),
            "metric.loss_d": loss[1:].cpu().numpy(),
        }
        kept = {"optimizers": {name: o.state_dict() for name, o in optimizers.items()}}
        return {**vectors, **kept}, Reply(parts, holds=digest("networks"))

    def batches(self, data: Pictures, rng: Rng) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Every picture once an epoch, in a new order each time."""
        order = rng.child("order").numpy()
        for _ in range(self.local_epochs):
            for pick in np.array_split(order.permutation(len(data)), -(-len(data) // self.batch)):
                y = None if data.labels is None or not self.task.classes else torch.from_numpy(data.labels[pick])
                yield (
                    to_float(data.pixels[pick]).to(self.task.device),
                    None if y is None else y.to(self.task.device),
                )


def _bce(logits: Tensor, target: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, target)


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
