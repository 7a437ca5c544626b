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

from vitrail.data.dataset import Images
from vitrail.methods.base import Broadcast, PartSpec, Reply, ServerMessage
from vitrail.methods.psfedgan import cloud, messages
from vitrail.methods.psfedgan.algorithm import PsFedGan
from vitrail.methods.psfedgan.networks import load_discriminator, load_generator, user_state
from vitrail.nets.dcgan import initialise
from vitrail.nets.flat import on_meta, to_vector, vector_size
from vitrail.utils.errors import Malformed
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, finite
from vitrail.wire.codecs import Array


@dataclass(frozen=True)
class FullGan(PsFedGan):
    """Full-GAN sharing: PS-FedGAN with M(G_u, D_u) in place of M_p, so without its three settings of M_p."""

    d_coding: ClassVar[str] = "plain"  # type: ignore[misc]
    client_discriminators: ClassVar[str] = ""  # type: ignore[misc]
    key_source: ClassVar[str] = "agree"  # type: ignore[misc]
    clients_key: ClassVar[str] = "users"
    released: ClassVar[str] = (
        "the discriminator at every step, trained with noised gradients; the generator, which is trained only against "
        "these discriminators"
    )

    def reply_spec(self) -> Mapping[str, PartSpec]:
        G, D = on_meta(self.generator), on_meta(self.discriminator, self.architecture)
        n, g_size, d_size = self.steps_per_message, vector_size(G), vector_size(D)
        messages.check_message_size(self, n * (g_size + d_size))
        parts = {
            "generators": PartSpec("each", "float32", n * g_size, shape=(n, g_size)),
            "discriminators": PartSpec("each", "float32", n * d_size, shape=(n, d_size)),
        }
        return parts | messages.common_parts(self)

    def for_audit(self) -> FullGan:
        """Return itself: all parts are plain."""
        return self

    # -- user -----------------------------------------------------------------------------------------------------

    def client_init(self, client: str, rng: Rng) -> State:  # noqa: ARG002
        """Initialize G_u and D_u."""
        G = initialise(self.generator(), rng.child("generator").torch())
        return {"now": {"steps": 0, "generator": to_vector(G), "adam": None, **self.initial_discriminator(rng)}}

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:  # noqa: ARG002
        """Run the user's half of psfedgan's Algorithm 1; publish M(G_u, D_u) after each step."""
        before, seed = state["now"], rng.child("z").seed()
        G, D = load_generator(self, before), load_discriminator(self, before)
        steps = [(to_vector(G[0]), *step) for step in self.train_user(G, D, data, seed, rng)]
        generators, discriminators, _, *losses = map(np.array, zip(*steps, strict=True))
        parts = {"generators": generators, "discriminators": discriminators}
        after = user_state(before, len(steps), G, D)
        return {"now": after}, Reply(parts | messages.common_reply(self, data, losses))

    # -- server ---------------------------------------------------------------------------------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:
        """Start without generators, and without a secret."""
        return {name: value for name, value in super().server_init(rng, data, start).items() if name != "key"}

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """Send a request without content."""
        return Broadcast({})

    def receive(self, server: State, client: str, parts: Mapping[str, Array]) -> State:
        """Store the client's last G_u and the moving average of all."""
        rows = parts["generators"].reshape(self.steps_per_message, -1)
        average = server["users"].get(client, {})
        for row in rows:
            average = cloud.update_average(self, average, row)
        user = {"generator": np.array(rows[-1]), "labels": messages.read_labels(self, parts), **average}
        if not finite(user):
            raise Malformed("the moving average of the client's G is no longer finite")
        return cloud.store_user(self, server, client, user)

    def with_client_overrides(self, wishes: Mapping[str, str]) -> FullGan:  # noqa: ARG002
        """Ignore them: all clients have the same D."""
        return self

    def eavesdropping(self) -> None:
        """Return None: there is no secret, since anyone who reads a message has the generator."""
