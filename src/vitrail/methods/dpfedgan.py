"""DP-FedAvg-GAN: Generative Models for Effective ML on Private, Decentralized Datasets.

Augenstein et al.; ICLR 2020. Only discriminators see data, so only they are trained on clients (Algorithm 1): a round
sends D and G down; each client trains D on its own pictures and fakes of its own making and sends what changed, scaled
to norm C; the server adds noise to the sum of the updates, moves D by their mean, and trains G against that D, for
which it needs no data. So G is as private as D is: one client's whole data, by DP-FedAvg.

What differs from the paper: the networks and losses are fedgan's (D with GroupNorm); clients use Adam, begun anew each
round, as they keep nothing; every client asked counts the same. A noise multiplier such as the paper's 0.01 stands for
a simulation of what many more clients would allow, and is no privacy: ask for an epsilon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.base import (
    NUM_CLIENTS,
    Broadcast,
    Model,
    PartSpec,
    Reply,
    ServerMessage,
    Sums,
    clip_weights,
    is_sendable,
)
from vitrail.methods.private import PrivateMethod
from vitrail.nets.dcgan import DcganDiscriminator, DcganGenerator, initialise
from vitrail.nets.flat import from_vector, to_vector, vector_size
from vitrail.privacy import dpfedavg
from vitrail.privacy.mechanism import Mechanism
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, finite


@dataclass(frozen=True)
class DpFedGan(PrivateMethod):
    """DP-FedAvg-GAN's settings."""

    privacy: Annotated[
        Literal["none", "dp-fedavg"], Field(description="dp-fedavg: clip clients' updates of D and noise their sum")
    ] = "none"
    max_update_norm: Annotated[
        float, Field(ge=1e-6, le=1e4, description="privacy: largest norm of a client's update of D (C)")
    ] = 1.0
    width: Annotated[int, Field(ge=4, le=512, description="channels of the layer nearest to the picture")] = 32
    latent_dim: Annotated[int, Field(ge=1, le=4096, description="noise dimensions")] = 100
    local_epochs: Annotated[int, Field(ge=1, description="passes over a client's pictures in a round")] = 1
    batch_size: Annotated[int, Field(ge=2, description="pictures in a step")] = 64
    g_steps: Annotated[int, Field(ge=1, description="steps of G on the server in a round")] = 10
    lr: Annotated[float, Field(gt=0, le=1e3, description="Adam's learning rate, of D and of G")] = 2e-4
    beta1: Annotated[float, Field(ge=0, lt=1, description="Adam's first average; DCGAN's 0.5")] = 0.5
    g_loss: Annotated[Literal["nonsaturating", "minimax"], Field(description="the generator's loss")] = "nonsaturating"
    wire_dtype: Annotated[Literal["float32", "float16"], Field(description="how weights travel")] = "float32"

    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 60}
    mechanisms: ClassVar[tuple[str, ...]] = ("dp-fedavg",)

    def generator(self) -> DcganGenerator:
        """G, not yet initialised."""
        return DcganGenerator(self.task.shape, self.task.classes, self.width, self.latent_dim)

    def discriminator(self) -> DcganDiscriminator:
        """D, not yet initialised."""
        return DcganDiscriminator(self.task.shape, self.task.classes, self.width, "group")

    def base_mechanism(self) -> Mechanism | None:
        if self.privacy == "none":
            return None
        return dpfedavg.mechanism(self.max_update_norm, "the discriminator", bool(self.task.secagg_threshold))

    def reply_spec(self) -> Mapping[str, PartSpec]:
        with torch.device("meta"):
            size = vector_size(self.discriminator())
        if self.mechanism:
            return {"discriminator": PartSpec("sum", self.wire_dtype, size, self.max_update_norm)}
        return {
            "discriminator": PartSpec("sum", self.wire_dtype, size, over=NUM_CLIENTS),
            "metric.loss_d": PartSpec("sum", "float32", 1),
        }

    # -- server ---------------------------------------------------------------------------------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:  # noqa: ARG002
        """Both networks; G's Adam stays with the server."""
        nets = {"generator": self.generator(), "discriminator": self.discriminator()}
        first = {name: to_vector(initialise(net, rng.child(name).torch())) for name, net in nets.items()}
        return {**gan.init_or_warm_start(start, first), "adam": start["adam"] if start else None}

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """Both networks: a client makes its own fakes."""
        return Broadcast({name: (self.wire_dtype, server[name]) for name in ("generator", "discriminator")})

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """D moves by the mean of the noised sum of updates; then G takes its steps against D."""
        noise = (self.mechanism.sigma, self.source(rng.child("noise"))) if self.mechanism else None
        moved = dpfedavg.mean_update(sums, ["discriminator"], noise)["discriminator"]
        vector = clip_weights((server["discriminator"] + moved).astype(np.float32))
        D = from_vector(self.discriminator(), vector).to(self.task.device).train().requires_grad_(False)
        G = from_vector(self.generator(), server["generator"]).to(self.task.device).train()
        optimizer = gan.adam(G, self.lr, (self.beta1, 0.999), server["adam"])
        draw = rng.child("generator").torch()
        for _ in range(self.g_steps):
            z, y = gan.latent(self.batch_size, self.latent_dim, self.task, draw)
            gan.step(optimizer, gan.g_loss(D(G(z, y), y), self.g_loss))
        after: State = {"generator": to_vector(G), "discriminator": vector, "adam": optimizer.state_dict()["state"]}
        if not finite(after):  # D is such that G's steps overflow: G stays as it was
            after |= {name: server[name] for name in ("generator", "adam")}
        return after

    def export_models(self, server: State, client: State | None = None) -> Mapping[str, Model]:  # noqa: ARG002
        """The server's generator; clients keep none."""
        return gan.product(server["generator"], self.task, self.width, self.latent_dim)

    # -- client ---------------------------------------------------------------------------------------------------

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Algorithm 1, client side: train D on real pictures and fakes, send what changed."""
        received = message.parts["discriminator"]
        D = from_vector(self.discriminator(), received).to(self.task.device).train()
        G = from_vector(self.generator(), message.parts["generator"]).to(self.task.device).train()
        optimizer = gan.adam(D, self.lr, (self.beta1, 0.999), None)
        draw, losses = rng.child("training").torch(), []
        for real in gan.epochs(data, self.local_epochs, self.batch_size, self.task, rng):
            z, y = gan.latent(len(real[0]), self.latent_dim, self.task, draw)
            with torch.no_grad():
                fake = G(z, y)
            loss = gan.d_loss(D, real, (fake, y))
            gan.step(optimizer, loss)
            losses.append(float(loss.detach()))
        update = {"discriminator": to_vector(D) - received.astype(np.float32)}
        if self.mechanism:
            return state, Reply(dpfedavg.bounded(update, self.max_update_norm, self.wire_dtype))
        if not is_sendable(*update.values()):  # no change
            update = {name: np.zeros_like(a) for name, a in update.items()}
        return state, Reply({**update, "metric.loss_d": np.array([np.mean(losses)])})
