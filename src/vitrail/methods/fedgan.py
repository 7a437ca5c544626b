"""Federated Generative Adversarial Learning: FedAvg on a conditional GAN, with four ways to synchronise.

Fan, Liu; 2020. Every round a few clients train G and D on their own pictures (Eq. 2 and 3) and upload both; the server
averages. What clients take back is the `sync`: both ("d&g"), G alone ("g"), D alone ("d"), nothing ("none"). What a
client does not take back stays its own, with its optimiser, in its private state.

What differs from the paper: G's loss is the usual non-saturating one (g_loss="minimax" is Eq. 3); clients are weighted
by their number of pictures (weights="uniform" is the paper's mean); with upload="synced" only what is synchronised
travels up, which is what the paper's halved cost of Sync G means in bytes. Privacy is ours: see fedgan_private.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from vitrail.data.dataset import Images
from vitrail.methods import fedgan_mechanisms as private
from vitrail.methods import gan
from vitrail.methods.base import NUM_CLIENTS, Broadcast, Model, PartSpec, Reply, ServerMessage, Sums, clip_weights
from vitrail.methods.private import PrivateMethod
from vitrail.nets.dcgan import DcganDiscriminator, DcganGenerator, initialise
from vitrail.nets.flat import from_vector, to_vector, trainable_mask, vector_size
from vitrail.privacy import dpfedavg, dpsgd
from vitrail.privacy.mechanism import Mechanism
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, finite
from vitrail.wire.message import NO_BASE, digest

UNIT = 100  # weights count hundreds of pictures, so that weighted values fit float16 for few and for many


@dataclass(frozen=True)
class FedGan(PrivateMethod):
    """The federated GAN's settings."""

    privacy: Annotated[
        Literal["none", "dp-sgd", "dp-fedavg"],
        Field(
            description="dp-sgd: noise on D's gradients, on the client; dp-fedavg: on the sum of updates, by the server"
        ),
    ] = "none"
    sync: Annotated[Literal["d&g", "g", "d", "none"], Field(description="what clients take back from the server")] = (
        "d&g"
    )
    upload: Annotated[
        Literal["both", "synced"], Field(description="send both networks up, or what is synchronised")
    ] = "both"
    width: Annotated[int, Field(ge=4, le=512, description="channels of the layer nearest to the picture")] = 32
    latent_dim: Annotated[int, Field(ge=1, le=4096, description="noise dimensions")] = 100
    local_epochs: Annotated[int, Field(ge=1, description="passes over a client's pictures in a round")] = 1
    batch_size: Annotated[
        int, Field(ge=2, description="pictures in a step; dp-sgd: fakes in a step, and what sums are divided by")
    ] = 64
    lr: Annotated[float, Field(gt=0, le=1e3, description="Adam's learning rate")] = 2e-4
    beta1: Annotated[float, Field(ge=0, lt=1, description="Adam's first average; DCGAN's 0.5")] = 0.5
    g_loss: Annotated[Literal["nonsaturating", "minimax"], Field(description="the generator's loss")] = "nonsaturating"
    weighting: Annotated[
        Literal["examples", "uniform"], Field(description="how much a client counts; with privacy always the same")
    ] = "examples"
    wire_dtype: Annotated[Literal["float32", "float16"], Field(description="how weights travel")] = "float32"
    d_norm: Annotated[
        Literal["auto", "batch", "group"], Field(description="D's normalisation; auto: group with privacy")
    ] = "auto"
    max_grad_norm: Annotated[
        float,
        Field(
            ge=1e-6, le=1e4, description="privacy: largest norm of one picture's gradient, or one client's update (C)"
        ),
    ] = 1.0
    sample_rate: Annotated[
        float, Field(gt=0, le=1, description="dp-sgd: chance of a picture to be in a step; public, like batch")
    ] = 0.05
    dp_steps: Annotated[int, Field(ge=1, description="dp-sgd: steps of D in a round")] = 20
    d_steps: Annotated[int, Field(ge=1, description="dp-sgd: steps of D to one of G")] = 4

    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 60}
    mechanisms: ClassVar[tuple[str, ...]] = ("dp-sgd", "dp-fedavg")

    def nets(self) -> gan.Nets:
        """G and D, not yet initialised."""
        t = self.task
        auto: Literal["batch", "group"] = "batch" if self.privacy == "none" else "group"
        d = DcganDiscriminator(t.shape, t.classes, self.width, auto if self.d_norm == "auto" else self.d_norm)
        return {"generator": DcganGenerator(t.shape, t.classes, self.width, self.latent_dim), "discriminator": d}

    def base_mechanism(self) -> Mechanism | None:
        if self.privacy == "none":
            return None
        if self.privacy == "dp-sgd":
            with torch.device("meta"):
                dpsgd.check(self.nets()["discriminator"])
            what = f"{' and '.join(self.uploaded)}, trained with noised gradients"
            return dpsgd.mechanism(self.max_grad_norm, self.sample_rate, self.dp_steps, what)
        if "generator" not in self.synced:
            raise VitrailError(
                f"privacy=dp-fedavg with sync={self.sync}: an update is a change of what was received, and here "
                "clients never take G back; use sync=d&g or sync=g, or privacy=dp-sgd"
            )
        return dpfedavg.mechanism(self.max_grad_norm, " and ".join(self.uploaded), bool(self.task.secagg_threshold))

    @property
    def synced(self) -> tuple[str, ...]:
        """The networks that clients take back."""
        both = ("generator", "discriminator")
        return {"d&g": both, "g": both[:1], "d": both[1:], "none": ()}[self.sync]

    @property
    def uploaded(self) -> tuple[str, ...]:
        """The networks that clients send; the generator always, or there would be no product."""
        if self.privacy == "dp-fedavg":  # of what is not synchronised there is no update
            return self.synced
        if self.upload == "both":
            return ("generator", "discriminator")
        return tuple({"generator": 0, **dict.fromkeys(self.synced)})

    def reply_spec(self) -> Mapping[str, PartSpec]:
        with torch.device("meta"):
            nets = self.nets()
        if self.mechanism and self.privacy == "dp-fedavg":
            size = {name: int(trainable_mask(nets[name]).sum()) for name in self.uploaded}
            return {name: PartSpec("sum", self.wire_dtype, size[name], self.max_grad_norm) for name in self.uploaded}
        over = NUM_CLIENTS if self.mechanism else "weight"
        parts = {name: PartSpec("sum", self.wire_dtype, vector_size(nets[name]), over=over) for name in self.uploaded}
        if self.mechanism:  # how many pictures a client has, and how well it does, tell of its pictures
            return parts
        one = PartSpec("sum", "float32", 1)
        return {**parts, "weight": PartSpec("sum", "float32", 1, least=0), "metric.loss_g": one, "metric.loss_d": one}

    # -- server ---------------------------------------------------------------------------------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:  # noqa: ARG002
        """The networks all clients begin with."""
        nets = self.nets()
        first = {name: to_vector(initialise(net, rng.child(name).torch())) for name, net in nets.items()}
        first = gan.init_or_warm_start(start, first)
        return {**first, "initial": {name: first[name] for name in first if name not in self.synced}}

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """The synchronised networks; to a client that holds none yet, also the others, as everyone began with them."""
        told = {name: server[name] for name in self.synced} | (server["initial"] if full else {})
        base = NO_BASE if full or not server["initial"] else digest("networks")
        return Broadcast({name: (self.wire_dtype, vector) for name, vector in told.items()}, base)

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """FedAvg: the weighted mean of what clients sent."""
        if self.mechanism and self.privacy == "dp-fedavg":
            noise = self.mechanism.sigma, self.source(rng.child("noise"))
            nets = private.moved(server, self.nets(), sums, self.uploaded, noise)
            private.settle(nets["generator"], self.latent_dim, self.task, rng.child("statistics"))
            return {**server, **{name: to_vector(net) for name, net in nets.items()}}
        weight = sums.clients if self.mechanism else sums.values["weight"][0]
        with np.errstate(divide="ignore", invalid="ignore"):  # weights of nothing make a round that is not closed
            means = {n: clip_weights((sums.values[n] / weight).astype(np.float32)) for n in self.uploaded}
        return {**server, **means}

    def export_models(self, server: State, client: State | None = None) -> Mapping[str, Model]:
        """The central generator, or a client's own."""
        return gan.product((client or server)["generator"], self.task, self.width, self.latent_dim)

    # -- client ---------------------------------------------------------------------------------------------------

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Algorithm 1, client side: train both networks, send what is asked for."""
        nets, optimizers, began = self.nets(), dict[str, torch.optim.Optimizer](), dict[str, NDArray[np.float32]]()
        for name, net in nets.items():
            own = name in state and name not in self.synced  # what is not synchronised stays the client's
            began[name] = np.asarray(state[name] if own else message.parts[name], np.float32)
            from_vector(net, began[name])
            net.to(self.task.device).train()
            optimizers[name] = torch.optim.Adam(net.parameters(), self.lr, (self.beta1, 0.999))
            if state:  # a client keeps its own optimiser
                optimizers[name].load_state_dict(state["optimizers"][name])
        if self.mechanism and self.privacy == "dp-sgd":
            private.train(self, nets, optimizers, data, self.mechanism.sigma, rng)
        else:
            loss = self.train(nets, optimizers, data, rng)

        vectors = {name: to_vector(net) for name, net in nets.items()}
        after: State = {**vectors, "optimizers": {name: o.state_dict() for name, o in optimizers.items()}}
        if not finite(after):  # no change: the client stays as it was, and sends what it began with
            after, vectors = state, {name: np.array(began[name]) for name in nets}
        parts: dict[str, NDArray[Any]]
        if self.mechanism and self.privacy == "dp-fedavg":
            parts = dpfedavg.bounded(
                private.update(nets, message.parts, self.uploaded), self.max_grad_norm, self.wire_dtype
            )
        elif self.mechanism:
            parts = {name: clip_weights(vectors[name]) for name in self.uploaded}
        else:
            n = np.float32(len(data) / UNIT if self.weighting == "examples" else 1.0)
            parts = {name: clip_weights(vectors[name] * n) for name in self.uploaded}
            parts |= {"weight": np.array([n]), "metric.loss_g": loss[:1], "metric.loss_d": loss[1:]}
        return after, Reply(parts, holds=digest("networks") if after else NO_BASE)

    def train(self, nets: gan.Nets, optimizers: gan.Optimizers, data: Images, rng: Rng) -> NDArray[Any]:
        """One or more epochs of Eq. 2 and 3 on the client's own pictures; returns both mean losses."""
        G, D = nets["generator"], nets["discriminator"]
        draw = rng.child("training").torch()
        losses: list[Tensor] = []
        for x, y in gan.epochs(data, self.local_epochs, self.batch_size, self.task, rng):
            z, y_fake = gan.latent(len(x), self.latent_dim, self.task, draw)
            fake = G(z, y_fake)
            loss_d = gan.d_loss(D, (x, y), (fake, y_fake))  # Eq. 2
            gan.step(optimizers["discriminator"], loss_d)
            loss_g = gan.g_loss(D(fake, y_fake), self.g_loss)  # Eq. 3
            gan.step(optimizers["generator"], loss_g)
            losses.append(torch.stack([loss_g.detach(), loss_d.detach()]))
        return torch.stack(losses).mean(0).cpu().numpy()
