"""Full-GAN sharing, the baseline "FG" of PS-FedGAN: generator and discriminator are both sent at every step.

Wijesinghe, Zhang, Ding: PS-FedGAN; 2023 (section 2.2.1, Table 4). Each user has the same conditional GAN as in psfedgan
and trains it by the same steps, but publishes M(G_u, D_u) after each step. The server needs no secret and repeats no
step: it stores each user's last G_u and trains a classifier C_l on samples of all G_u and its own real images.

What leaves a client: its G's and D's as float32, and the set of its labels without counts. Anyone who reads a message
has the generator. A client whose reply was lost continues from its latest state; one that lost its state starts again.

Differences from the paper: those of psfedgan, except its keys. The server does not use D; it is sent because the paper
counts it.
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
from vitrail.methods.psfedgan.training import (
    check_finite,
    further_iterations,
    load_discriminator,
    load_generator,
    new_discriminator,
    train_discriminator,
    train_generator,
    user_state,
)
from vitrail.nets.dcgan import initialise
from vitrail.nets.flat import to_vector, vector_size
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import Malformed
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, finite
from vitrail.wire.codecs import Array


@dataclass(frozen=True)
class FullGan(LocalGan):
    """Full-GAN sharing; its settings are those of `LocalGan`."""

    clients_key: ClassVar[str] = "users"
    released: ClassVar[str] = (
        "the discriminator at every step, trained with noised gradients; the generator, which is trained only against "
        "these discriminators"
    )

    def reply_spec(self) -> Mapping[str, PartSpec]:
        with torch.device("meta"):
            g_size, d_size = vector_size(self.generator()), vector_size(self.discriminator(self.architecture))
        n = self.steps_per_message
        self.check_message_size(n * (g_size + d_size))
        parts = {
            "generators": PartSpec("each", "float32", n * g_size, shape=(n, g_size)),
            "discriminators": PartSpec("each", "float32", n * d_size, shape=(n, d_size)),
        }
        return parts | self.common_parts()

    # -- user -----------------------------------------------------------------------------------------------------

    def client_init(self, client: str, rng: Rng) -> State:  # noqa: ARG002
        """Initialize G_u and D_u."""
        G = initialise(self.generator(), rng.child("generator").torch())
        return {"now": {"steps": 0, "generator": to_vector(G), "adam": None, **new_discriminator(self, rng)}}

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:  # noqa: ARG002
        """Run the user's half of psfedgan's Algorithm 1; publish M(G_u, D_u) after each step."""
        before, labels, seed = state["now"], self.labels_of(data), rng.child("z").seed()
        (G_u, opt_g), (D_u, opt_d) = load_generator(self, before), load_discriminator(self, before)
        generators, discriminators, losses = [], [], []
        with one_thread(), torch.enable_grad():
            for t in range(self.steps_per_message):
                further_iterations(self, G_u, (D_u, opt_d), data, seed, t, labels, rng)
                z_t, l_t = self.noise(seed, t, labels)
                fakes = G_u(z_t, l_t), l_t
                loss_d = train_discriminator(self, (D_u, opt_d), data, fakes, rng.child("step", t, 0))
                loss_g = train_generator(self, opt_g, D_u, fakes)
                check_finite(G_u)
                generators.append(to_vector(G_u))
                discriminators.append(to_vector(D_u))
                losses.append((loss_g, loss_d))
        after = user_state(before, self.steps_per_message, (G_u, opt_g), (D_u, opt_d))
        common = self.common_reply(data, np.array(losses).mean(0).astype(np.float32))
        return {"now": after}, Reply(
            {"generators": np.stack(generators), "discriminators": np.stack(discriminators), **common}
        )

    # -- server ---------------------------------------------------------------------------------------------------

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """Send a request without content."""
        return Broadcast({})

    def receive(self, server: State, client: str, parts: Mapping[str, Array]) -> State:
        """Store the client's last G_u and the moving average of all."""
        rows = parts["generators"].reshape(self.steps_per_message, -1)
        average = server["users"].get(client, {})
        for row in rows:
            average = self.update_average(average, row)
        user = {"generator": np.array(rows[-1]), "labels": self.read_labels(parts), **average}
        if not finite(user):
            raise Malformed("the moving average of the client's G is no longer finite")
        self.check_images(user)
        return self.store_user(server, client, user)
