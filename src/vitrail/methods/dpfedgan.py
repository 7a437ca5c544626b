"""DP-FedAvg-GAN: Generative Models for Effective ML on Private, Decentralized Datasets.

Augenstein et al.; ICLR 2020. Only discriminators are trained on data, so only they are trained on clients
(Algorithm 1). In a round the server sends D and G; each user k trains D on its images and on fakes, and sends the
change Δ_k of θ_D, scaled to norm S; the server adds noise to the sum of all Δ_k and their mean to θ_D, and trains θ_G
against D, for which it needs no data. So G is as private as D: DP-FedAvg protects the whole data of one client.

Differences from the paper:

- The networks and losses are fedgan's (D with GroupNorm).
- Clients use Adam and restart it in each round, since they store nothing. Every client has the same weight.
- A noise multiplier such as the paper's 0.01 simulates many more clients and gives no privacy by itself: set epsilon=.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.base import clip_weights, is_sendable, setting
from vitrail.methods.messages import NUM_CLIENTS, Broadcast, PartSpec, Reply, ServerMessage, Sums
from vitrail.methods.private import PrivateMethod
from vitrail.nets.dcgan import DcganDiscriminator, initialise
from vitrail.nets.flat import from_vector, on_meta, to_vector, vector_size
from vitrail.privacy import dpfedavg
from vitrail.privacy.mechanism import Mechanism
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, finite

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class DpFedGan(gan.GeneratorOnServer, PrivateMethod):
    """DP-FedAvg-GAN: the settings, then Algorithm 1 from top to bottom."""

    privacy: Literal["none", "dp-fedavg"] = setting(
        "none", "dp-fedavg: clip clients' updates of D and noise their sum (paper: dp-fedavg)"
    )
    max_update_norm: float = setting(1.0, "privacy: largest norm S of a client's update of D", ge=1e-6, le=1e4)
    width: int = setting(32, "channels of the layer nearest to the image", ge=4, le=512)
    latent_dim: int = setting(100, "dimensions of the noise z", ge=1, le=4096)
    local_epochs: int = setting(1, "passes over a client's images in a round", ge=1)
    batch_size: int = setting(64, "images per step", ge=2)
    g_steps: int = setting(10, "steps of G on the server per round", ge=1)
    lr: float = setting(2e-4, "Adam's learning rate for D and G", gt=0, le=1e3)
    beta1: float = setting(0.5, "Adam's β1; DCGAN uses 0.5", ge=0, lt=1)
    g_loss: Literal["nonsaturating", "minimax"] = setting("nonsaturating", "the generator's loss")
    wire_dtype: Literal["float32", "float16"] = setting("float32", "number format of weights in messages")

    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 60}
    mechanisms: ClassVar[tuple[str, ...]] = ("dp-fedavg",)

    # -- Algorithm 1, the server's training loop --------------------------------------------------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:  # noqa: ARG002
        """Initialize θ_G and θ_D."""
        nets = {"generator": self.generator(), "discriminator": self.discriminator()}
        theta = {name: to_vector(initialise(net, rng.child(name).torch())) for name, net in nets.items()}
        return {**gan.init_or_warm_start(start, theta), "adam": start["adam"] if start else None}

    # (for each round t; C^t ← a sample of users: the engine selects `clients_per_round` clients)

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """For each user k in C^t: send θ_D^t and θ_G^t, the arguments of UserDiscUpdate."""
        return Broadcast({name: (self.wire_dtype, server[name]) for name in ("generator", "discriminator")})

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """Add the noised mean of all Δ_k to θ_D, and train θ_G against the result."""
        noise = (self.mechanism.sigma, self.source(rng.child("noise"))) if self.mechanism else None
        # Δ ← mean of Δ_k, with N(0, Iσ²)
        delta = dpfedavg.mean_update(sums.values, sums.clients, ["discriminator"], noise)["discriminator"]
        theta_D = clip_weights((server["discriminator"] + delta).astype(np.float32))  # θ_D^(t+1) ← θ_D^t + Δ
        # (accumulate the privacy spent: the run's ledger)
        theta_G, adam = self.gen_update(theta_D, server["generator"], server["adam"], rng)  # θ_G^(t+1) ← GenUpdate
        after: State = {"generator": theta_G, "discriminator": theta_D, "adam": adam}
        if not finite(after):  # G's steps against this D overflow: keep G
            after |= {name: server[name] for name in ("generator", "adam")}
        return after

    # -- UserDiscUpdate(k, θ_D^0, θ_G) ------------------------------------------------------------------------------

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Train θ_D on real images and fakes, and return Δ_k."""
        theta_D_0 = message.parts["discriminator"]
        D = from_vector(self.discriminator(), theta_D_0).to(self.task.device).train()  # θ_D ← θ_D^0
        G = from_vector(self.generator(), message.parts["generator"]).to(self.task.device).train()
        optimizer = gan.adam(D, self.lr, (self.beta1, 0.999), None)
        draw, losses = rng.child("training").torch(), []
        for b_real in gan.epochs(data, self.local_epochs, self.batch_size, self.task, rng):
            U, y = gan.sample_latent(len(b_real[0]), self.latent_dim, self.task, draw)
            with torch.no_grad():
                b_fake = G(U, y), y
            l_D = gan.d_loss(D, b_real, b_fake)
            gan.step(optimizer, l_D)  # θ_D ← θ_D - η_D ∇l_D(θ_D; b_real, b_fake)
            losses.append(float(l_D.detach()))
        delta_k = {"discriminator": to_vector(D) - theta_D_0.astype(np.float32)}  # Δ_k ← θ_D - θ_D^0
        if self.mechanism:  # Δ_k · min(1, S / |Δ_k|)
            return state, Reply(dpfedavg.clip_update(delta_k, self.max_update_norm, self.wire_dtype))
        if not is_sendable(*delta_k.values()):  # training diverged: no change
            delta_k = {name: np.zeros_like(a) for name, a in delta_k.items()}
        return state, Reply({**delta_k, "metric.loss_d": np.array([np.mean(losses)])})

    # -- GenUpdate(θ_D, θ_G^0) --------------------------------------------------------------------------------------

    def gen_update(self, theta_D: Vector, theta_G_0: Vector, adam: State | None, rng: Rng) -> tuple[Vector, State]:
        """Train θ_G against D on the server, without data; return it and the state of its Adam."""
        D = from_vector(self.discriminator(), theta_D).to(self.task.device).train().requires_grad_(False)
        G = from_vector(self.generator(), theta_G_0).to(self.task.device).train()  # θ_G ← θ_G^0
        optimizer = gan.adam(G, self.lr, (self.beta1, 0.999), adam)
        draw = rng.child("generator").torch()
        for _ in range(self.g_steps):
            U, y = gan.sample_latent(self.batch_size, self.latent_dim, self.task, draw)
            l_G = gan.g_loss(D(G(U, y), y), self.g_loss)
            gan.step(optimizer, l_G)  # θ_G ← θ_G - η_G ∇l_G(θ_G; b_fake)
        return to_vector(G), optimizer.state_dict()["state"]

    # -- What both sides know ---------------------------------------------------------------------------------------

    def discriminator(self) -> DcganDiscriminator:
        """Return D, not initialized."""
        return DcganDiscriminator(self.task.shape, self.task.classes, self.width, "group")

    def base_mechanism(self) -> Mechanism | None:
        if self.privacy == "none":
            return None
        return dpfedavg.mechanism(self.max_update_norm, "the discriminator", bool(self.task.secagg_threshold))

    def reply_spec(self) -> Mapping[str, PartSpec]:
        size = vector_size(on_meta(self.discriminator))
        if self.mechanism:
            return {"discriminator": PartSpec("sum", self.wire_dtype, size, self.max_update_norm)}
        update = PartSpec("sum", self.wire_dtype, size, over=NUM_CLIENTS)
        return {"discriminator": update, "metric.loss_d": PartSpec("sum", "float32", 1)}
