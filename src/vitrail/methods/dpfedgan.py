"""DP-FedAvg-GAN: Generative Models for Effective ML on Private, Decentralized Datasets.

Augenstein et al.; ICLR 2020. Only discriminators are trained on data, so only they are trained on clients
(Algorithm 1). In a round the server sends D and G; each client trains D on its images and on fakes, and sends the
change of D, scaled to norm C; the server noises the sum of these updates, adds their mean to D, and trains G against D,
for which it needs no data. So G is as private as D: DP-FedAvg protects the whole data of one client.

Differences from the paper:

- The networks and losses are fedgan's (D with GroupNorm).
- Clients use Adam and restart it in each round, since they store nothing. Every client has the same weight.
- A noise multiplier such as the paper's 0.01 simulates many more clients and gives no privacy by itself: set epsilon=.
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
    """DP-FedAvg-GAN: the settings, then Algorithm 1 from top to bottom."""

    privacy: Annotated[
        Literal["none", "dp-fedavg"],
        Field(description="dp-fedavg: clip clients' updates of D and noise their sum (paper: dp-fedavg)"),
    ] = "none"
    max_update_norm: Annotated[
        float, Field(ge=1e-6, le=1e4, description="privacy: largest norm of a client's update of D, C")
    ] = 1.0
    width: Annotated[int, Field(ge=4, le=512, description="channels of the layer nearest to the image")] = 32
    latent_dim: Annotated[int, Field(ge=1, le=4096, description="dimensions of the noise z")] = 100
    local_epochs: Annotated[int, Field(ge=1, description="passes over a client's images in a round")] = 1
    batch_size: Annotated[int, Field(ge=2, description="images per step")] = 64
    g_steps: Annotated[int, Field(ge=1, description="steps of G on the server per round")] = 10
    lr: Annotated[float, Field(gt=0, le=1e3, description="Adam's learning rate for D and G")] = 2e-4
    beta1: Annotated[float, Field(ge=0, lt=1, description="Adam's β1; DCGAN uses 0.5")] = 0.5
    g_loss: Annotated[Literal["nonsaturating", "minimax"], Field(description="the generator's loss")] = "nonsaturating"
    wire_dtype: Annotated[Literal["float32", "float16"], Field(description="number format of weights in messages")] = (
        "float32"
    )

    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 60}
    mechanisms: ClassVar[tuple[str, ...]] = ("dp-fedavg",)

    # -- The server sends both networks -----------------------------------------------------------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:  # noqa: ARG002
        """Initialize D and G."""
        nets = {"generator": self.generator(), "discriminator": self.discriminator()}
        first = {name: to_vector(initialise(net, rng.child(name).torch())) for name, net in nets.items()}
        return {**gan.init_or_warm_start(start, first), "adam": start["adam"] if start else None}

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """Send D, and G with which the client generates fakes."""
        return Broadcast({name: (self.wire_dtype, server[name]) for name in ("generator", "discriminator")})

    # -- Algorithm 1, client side -----------------------------------------------------------------------------------

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Train D on real images and fakes, and return its change."""
        received = message.parts["discriminator"]
        D = from_vector(self.discriminator(), received).to(self.task.device).train()
        G = from_vector(self.generator(), message.parts["generator"]).to(self.task.device).train()
        optimizer = gan.adam(D, self.lr, (self.beta1, 0.999), None)
        draw, losses = rng.child("training").torch(), []
        for real in gan.epochs(data, self.local_epochs, self.batch_size, self.task, rng):
            z, y = gan.sample_latent(len(real[0]), self.latent_dim, self.task, draw)
            with torch.no_grad():
                fake = G(z, y)
            loss = gan.d_loss(D, real, (fake, y))
            gan.step(optimizer, loss)
            losses.append(float(loss.detach()))
        update = {"discriminator": to_vector(D) - received.astype(np.float32)}
        if self.mechanism:  # clip the update to norm C
            return state, Reply(dpfedavg.clip_update(update, self.max_update_norm, self.wire_dtype))
        if not is_sendable(*update.values()):  # training diverged: no change
            update = {name: np.zeros_like(a) for name, a in update.items()}
        return state, Reply({**update, "metric.loss_d": np.array([np.mean(losses)])})

    # -- Algorithm 1, server side -----------------------------------------------------------------------------------

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """Add the mean of the noised sum of updates to D; then train G against D."""
        noise = (self.mechanism.sigma, self.source(rng.child("noise"))) if self.mechanism else None
        mean = dpfedavg.mean_update(sums, ["discriminator"], noise)["discriminator"]
        vector = clip_weights((server["discriminator"] + mean).astype(np.float32))
        D = from_vector(self.discriminator(), vector).to(self.task.device).train().requires_grad_(False)
        G = from_vector(self.generator(), server["generator"]).to(self.task.device).train()
        optimizer = gan.adam(G, self.lr, (self.beta1, 0.999), server["adam"])
        draw = rng.child("generator").torch()
        for _ in range(self.g_steps):
            z, y = gan.sample_latent(self.batch_size, self.latent_dim, self.task, draw)
            gan.step(optimizer, gan.g_loss(D(G(z, y), y), self.g_loss))
        after: State = {"generator": to_vector(G), "discriminator": vector, "adam": optimizer.state_dict()["state"]}
        if not finite(after):  # G's steps against this D overflow: keep G
            after |= {name: server[name] for name in ("generator", "adam")}
        return after

    def export_models(self, server: State, client: State | None = None) -> Mapping[str, Model]:  # noqa: ARG002
        """Return the server's generator; clients have none."""
        return gan.generator_model(server["generator"], self.task, self.width, self.latent_dim)

    # -- What both sides know ---------------------------------------------------------------------------------------

    def generator(self) -> DcganGenerator:
        """Return G, not initialized."""
        return DcganGenerator(self.task.shape, self.task.classes, self.width, self.latent_dim)

    def discriminator(self) -> DcganDiscriminator:
        """Return D, not initialized."""
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
        update = PartSpec("sum", self.wire_dtype, size, over=NUM_CLIENTS)
        return {"discriminator": update, "metric.loss_d": PartSpec("sum", "float32", 1)}
