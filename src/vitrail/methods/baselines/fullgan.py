"""Full-GAN sharing, "FG" in PS-FedGAN (Wijesinghe, Zhang, Ding; 2023): what that paper compares itself with.

The same conditional GAN for each user as in psfedgan.py, trained by the same steps; but the user publishes M(G_u, D_u)
after each step, both networks as they are. The server needs no secret and repeats nothing: it keeps the last G_u of
each user, and trains a classifier C on samples of all of them and the few real pictures it holds.

What leaves a client: its G's and D's as float32, and the set of labels that it has pictures of (no counts). Whoever
reads a message has the generator. The server has no use for D; it travels because the paper counts it.

A client whose reply was lost goes on from where it is; one that has lost its state begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from vitrail.data.dataset import Images
from vitrail.methods.base import Broadcast, PartSpec, Reply, ServerMessage
from vitrail.methods.psfedgan.local_gan import LocalGan
from vitrail.methods.psfedgan.local_training import User, new_discriminator
from vitrail.nets.dcgan import initialise
from vitrail.nets.flat import to_vector, vector_size
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import Malformed
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, finite
from vitrail.wire.codecs import Array


@dataclass(frozen=True)
class FullGan(LocalGan):
    """Full-GAN sharing's two halves; what the server does with generators is in localgan.py."""

    users: ClassVar[str] = "users"
    leaves: ClassVar[str] = (
        "the discriminator at every step, trained with noised gradients; the generator, which only ever saw that"
    )

    def reply_spec(self) -> Mapping[str, PartSpec]:
        with torch.device("meta"):
            sizes = vector_size(self.generator()), vector_size(self.discriminator(self.architecture))
        self.fits(self.steps_per_message * sum(sizes))
        parts = {
            "generators": PartSpec(
                "each", "float32", self.steps_per_message * sizes[0], shape=(self.steps_per_message, sizes[0])
            ),
            "discriminators": PartSpec(
                "each", "float32", self.steps_per_message * sizes[1], shape=(self.steps_per_message, sizes[1])
            ),
        }
        return parts | self.declares_besides()

    # -- server ---------------------------------------------------------------------------------------------------

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """Nothing but that it is asked."""
        return Broadcast({})

    def receive(self, server: State, client: str, parts: Mapping[str, Array]) -> State:
        """Keep the last G_u, and the mean of all so far."""
        rows = parts["generators"].reshape(self.steps_per_message, -1)
        mean = self.averaged(server["users"].get(client), rows)
        user = {"generator": np.array(rows[-1]), "labels": self.labels_said(parts), **mean}
        if not finite(user):
            raise Malformed("the mean of its G is no longer finite")
        self.check_images(user)
        return {**server, "users": dict(sorted({**server["users"], client: user}.items()))}

    # -- client ---------------------------------------------------------------------------------------------------

    def client_init(self, client: str, rng: Rng) -> State:  # noqa: ARG002
        """G_u and D_u before their first step."""
        G = initialise(self.generator(), rng.child("generator").torch())
        return {"now": {"steps": 0, "generator": to_vector(G), "adam": None, **new_discriminator(self, rng)}}

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:  # noqa: ARG002
        """Algorithm 1, user side, for all steps of one message; (G_u, D_u) is published after each."""
        published, losses = [], []
        with one_thread(), torch.enable_grad():
            gan = User(self, state["now"])
            for loss in gan.steps(data, rng.child("z").seed(), rng):
                published.append((to_vector(gan.learner.G), to_vector(gan.D)))
                losses.append(loss)
        G, D = (np.stack(rows) for rows in zip(*published, strict=True))
        besides = self.says_besides(data, np.array(losses).mean(0).astype(np.float32))
        return {"now": gan.state()}, Reply({"generators": G, "discriminators": D, **besides})
