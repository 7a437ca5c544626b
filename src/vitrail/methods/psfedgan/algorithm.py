"""PS-FedGAN (Algorithm 1): only discriminators are sent; the server rebuilds each client's generator from them.

Wijesinghe, Zhang, Ding: PS-FedGAN: An Efficient Federated Learning Framework Based on Partially Shared Generative
Adversarial Networks For Data Privacy; 2023. Each user i has a conditional GAN. G_u on the user and G_s in the cloud
start from one secret seed. After each step of D_u the user publishes M_p = (D_u, z_t, l_t); both generators then take
the same step against that D_u, so G_s equals G_u bit for bit and is never sent.

Messages. One message has `steps_per_message` steps: D_u of each, exact or rounded (d_coding); one public seed for all
z_t and l_t; the name of D_u's architecture; an HMAC of G_u. Where D_u is rounded, both generators step against the
rounded D_u (a channel with quantization, section 3.3), and D_u itself is trained further in float32.

Lost and wrong messages. The server repeats the steps on G_s and compares HMACs. If they differ, it discards the reply
and excludes the client from the round. Each request names the last state that both sides agreed on. The client stores
that state until the next one is acknowledged and continues from it; a client without it restarts from the next secret
seed ("generation"), and so does the server. G is never sent, even then.

What leaves a client: its D's, its public key, and the set of its labels without counts, because l_t is drawn from it
(for other labels D_u sees fakes only, so G would learn nothing). label_sets=all does not send the set.

Differences from the paper:
- Each client agrees on its secret seed with the server by X25519 (key_source=agree). The paper does not say how.
- C_l is trained in the server's final rounds, not after every N steps and not first on the cloud's data.
- D has GroupNorm in place of BatchNorm, so its weights are all of its state.
- With d_steps > 1, each further iteration of D_u draws its own z and l.
- The server samples from a moving average of G_s (ema_decay=0: from G_s itself).
- privacy=dp-sgd is our addition; the quantization argument of section 3.3 gives no ε.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import nn

from vitrail.data.dataset import Images
from vitrail.methods.base import Broadcast, PartSpec, Reply, ServerMessage
from vitrail.methods.psfedgan import messages, twin
from vitrail.methods.psfedgan.coding import Coding, Floats
from vitrail.methods.psfedgan.eavesdropping import Eavesdropping
from vitrail.methods.psfedgan.local_gan import LocalGan
from vitrail.methods.psfedgan.training import (
    check_finite,
    further_iterations,
    generator_state,
    load_discriminator,
    load_generator,
    new_discriminator,
    train_discriminator,
    train_generator,
    user_state,
)
from vitrail.nets.flat import from_vector, tensor_sizes, to_vector
from vitrail.utils.crypto import public
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, finite
from vitrail.wire.codecs import Array


@dataclass(frozen=True)
class PsFedGan(LocalGan):
    """PS-FedGAN: the settings of `LocalGan`, those below, and Algorithm 1 from top to bottom."""

    d_coding: Annotated[
        Literal["plain", "delta", "int8", "int4"],
        Field(description="coding of D: plain (float32), delta (exact, coded differences), int8 or int4 (rounded)"),
    ] = "plain"
    client_discriminators: Annotated[
        str,
        Field(description="clients whose D differs from d_architecture and d_width: NAME=ARCHITECTURE:WIDTH, ..."),
    ] = ""
    key_source: Annotated[
        Literal["agree", "file"],
        Field(
            description="secret seed of G. agree: by X25519 key agreement; file: from CLIENT.key in the folder "
            "VITRAIL_KEYS, on both sides"
        ),
    ] = "agree"

    clients_key: ClassVar[str] = "twins"
    released: ClassVar[str] = (
        "the discriminator at every step, trained with noised gradients; a public key, or none with key_source=file; "
        "a keyed digest of G"
    )

    def reply_spec(self) -> Mapping[str, PartSpec]:
        return messages.reply_spec(self)

    # -- for each user i: initialize G_u and G_s with the secret seed key_i, and D_u --------------------------------
    # G_u and G_s: twin.initial_state, in `last_agreed_state` and `receive`. D_u: training.new_discriminator.

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:
        """Create the server's private key; there are no generators yet."""
        return {**super().server_init(rng, data, start), "key": self.source(rng.child("key"))(messages.KEY_BYTES)}

    def client_init(self, client: str, rng: Rng) -> State:
        """Create the client's private key; the GAN is initialized in its first round, with the server's key."""
        return {"name": client, "key": self.source(rng.child("key"))(messages.KEY_BYTES), "now": None, "before": None}

    def shared_secret(self, client: str, private: bytes, client_key: bytes, server_key: bytes) -> twin.Secret:
        """Return the secret that a client and the server share, given one's private key and both public keys."""
        if self.key_source == "file":
            return twin.secret_from_file(client)
        return twin.agree_on_secret(private, client_key, server_key, client)

    # -- for each communication round -------------------------------------------------------------------------------

    def start_round(self, server: State, clients: Sequence[str], rng: Rng) -> tuple[State, Sequence[str]]:
        """Request all clients, or none in C_l's rounds; a missing key file is reported before any request."""
        server, clients = super().start_round(server, clients, rng)
        for client in clients if self.key_source == "file" else ():
            twin.secret_from_file(client)
        return server, clients

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """Send the server's public key, and the digest of the last state that both sides agreed on."""
        known = server["twins"].get(client)
        parts: dict[str, tuple[str, Array]] = {"generation": ("int32", np.array([known["generation"] if known else 0]))}
        if self.key_source == "agree":
            parts["key"] = ("bytes", _as_array(public(server["key"])))
        if known:
            parts["agreed"] = ("bytes", _as_array(known["digest"]))
        return Broadcast(parts)

    # -- user i -----------------------------------------------------------------------------------------------------

    def train_user(self, before: State, data: Images, seed: int, rng: Rng) -> tuple[State, Floats, Floats, Floats]:
        """Run the user's half of Algorithm 1 for all steps of one message.

        Returns:
            The GAN after the steps, D_u of each step, D_u as the server decodes it, and mean losses of G and D.
        """
        (G_u, opt_g), (D_u, opt_d) = load_generator(self, before), load_discriminator(self, before)
        coding, labels = self.coding(self.architecture), self.labels_of(data)
        D_decoded = self.discriminator(self.architecture).to(self.task.device).train()
        published, decoded, losses = [], [], []
        with one_thread(), torch.enable_grad():
            for t in range(self.steps_per_message):
                further_iterations(self, G_u, (D_u, opt_d), data, seed, t, labels, rng)
                # z_t, l_t <- random vectors, random labels
                z_t, l_t = self.noise(seed, t, labels)
                fakes = G_u(z_t, l_t), l_t
                # Train D_u: D_u^(t+1) <- F(G_u^(t)(z_t, l_t), D_u^(t))
                loss_d = train_discriminator(self, (D_u, opt_d), data, fakes, rng.child("step", t, 0))
                # Share M_p(D_u^(t+1), z_t, l_t)
                published.append(to_vector(D_u))
                decoded.append(coding.round(published[-1]))
                # Train G_u: G_u^(t+1) <- F(G_u^(t)(z_t, l_t), D_u^(t+1))
                loss_g = train_generator(self, opt_g, from_vector(D_decoded, decoded[-1]), fakes)
                check_finite(G_u)
                losses.append((loss_g, loss_d))
        after = user_state(before, self.steps_per_message, (G_u, opt_g), (D_u, opt_d))
        mean_losses = np.array(losses).mean(0).astype(np.float32)
        return {**after, "generation": before["generation"]}, np.stack(published), np.stack(decoded), mean_losses

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Train from the last agreed state and publish the steps."""
        user = self.for_client(state["name"])
        own_key, server_key = public(state["key"]), message.parts["key"].tobytes() if "key" in message.parts else b""
        secret = self.shared_secret(state["name"], state["key"], own_key, server_key)
        before, sent_back = user.last_agreed_state(state, message, secret, rng)
        seed, coding = rng.child("z").seed(), user.coding(user.architecture)
        after, published, decoded, losses = user.train_user(before, data, seed, rng)
        after["digest"] = twin.digest(after, decoded, secret)
        after["published"] = coding.next_context(decoded, before["published"])
        parts: dict[str, Any] = {
            "digest": _as_array(after["digest"]),
            "generation": np.array([after["generation"]]),
            "seed": np.array([seed], np.uint64),
            "architecture": _as_array(user.architecture.encode()),
            "discriminators": coding.encode(published, before["published"]),
            "metric.sent_back": np.array([sent_back], np.float32),
        }
        if self.key_source == "agree":
            parts["key"] = _as_array(own_key)
        return {**state, "now": after, "before": before}, Reply(parts | user.common_reply(data, losses))

    def last_agreed_state(
        self, state: State, message: ServerMessage, secret: twin.Secret, rng: Rng
    ) -> tuple[State, bool]:
        """Return the GAN to train from, which the server has too, and whether it is not this client's latest one."""
        agreed = message.parts["agreed"].tobytes() if "agreed" in message.parts else b""
        for which in ("now", "before"):
            if agreed and state[which] and hmac.compare_digest(state[which]["digest"], agreed):
                found, sent_back = state[which], which == "before"
                break
        else:
            generation = int(message.parts["generation"][0]) + bool(agreed)  # the agreed state is lost: the next seed
            start = twin.initial_state(self.generator(), secret, generation)
            found = {**start, "digest": b"", "architecture": ""}
            sent_back = bool(agreed) or state["now"] is not None
        if found["architecture"] != self.architecture:  # a new start, or the client changed its D_u
            found = {**found, **new_discriminator(self, rng), "published": None}
        return found, sent_back

    # -- cloud ------------------------------------------------------------------------------------------------------

    def train_cloud(
        self, G_s: nn.Module, optimizer: torch.optim.Adam, published: messages.Published
    ) -> Iterator[float]:
        """Run the cloud's half of Algorithm 1 for all steps of one message; yield the loss of G_s after each."""
        with one_thread(), torch.enable_grad():
            D_u = self.discriminator(published.architecture).to(self.task.device).train()
            for t, vector in enumerate(published.discriminators):
                z_t, l_t = self.noise(published.seed, t, published.labels)
                # Train G_s: G_s^(t+1) <- F(G_s^(t)(z_t, l_t), D_u^(t+1))
                yield train_generator(self, optimizer, from_vector(D_u, vector), (G_s(z_t, l_t), l_t))

    def receive(self, server: State, client: str, parts: Mapping[str, Array]) -> State:
        """Repeat a client's steps on its G_s and store the result if it equals G_u."""
        known, generation = server["twins"].get(client), int(parts["generation"][0])
        client_key = parts["key"].tobytes() if self.key_source == "agree" else b""
        secret = self.shared_secret(client, server["key"], client_key, public(server["key"]))
        if known is not None and (known["generation"], known["key"]) == (generation, client_key):
            before = known
        elif generation == (known["generation"] + 1 if known else 0):
            before = None
        else:
            raise Malformed(f"the reply is for generation {generation} of G, which was not requested")
        published = messages.read(self, parts, before)
        start = average = before or twin.initial_state(self.generator(), secret, generation)
        G_s, optimizer = load_generator(self, start)
        for _ in self.train_cloud(G_s, optimizer, published):
            average = self.update_average(average, to_vector(G_s))
        steps = start["steps"] + self.steps_per_message
        after: State = {**generator_state(steps, G_s, optimizer), "generation": generation}
        digest = twin.digest(after, published.discriminators, secret)
        if not hmac.compare_digest(digest, parts["digest"].tobytes()):
            raise Malformed(
                f"G_s differs from G_u after {steps} steps; both sides return to the last state they agreed on (if it "
                "happens again, the machines compute differently: use the same torch version and kind of processor"
                + ("; or the key files differ)" if self.key_source == "file" else ")")
            )
        if not finite({**after, **average}):
            raise Malformed(f"G or its Adam is no longer finite after {steps} steps; lower lr")
        after |= {"key": client_key, "digest": digest, "labels": list(published.labels), **published.state(), **average}
        self.check_images(after)
        return self.store_user(server, client, after)

    # Train C_l with cloud data and synthetic data: LocalGan.finish_round.

    # -- a client's own D_u (section 2.2: "we impose no constraint on D_u") -----------------------------------------

    @property
    def own_discriminators(self) -> dict[str, str]:
        """The architecture of each client in client_discriminators."""
        pairs = [word.strip().rpartition("=") for word in self.client_discriminators.split(",") if word.strip()]
        return {name.strip(): architecture.strip() for name, _, architecture in pairs}

    def for_client(self, client: str) -> PsFedGan:
        """Return the method with this client's D_u."""
        architecture = self.own_discriminators.get(client)
        if architecture is None:
            return self
        try:
            return self.with_discriminator(architecture if client else "")
        except VitrailError as e:
            raise VitrailError(
                f"client_discriminators={self.client_discriminators}: {e}; write, for example, NAME=dense:32"
            ) from e

    def with_client_overrides(self, wishes: Mapping[str, str]) -> PsFedGan:
        """Apply the override `discriminator`, such as "dense:32", of a client's owner."""
        return self.with_discriminator(wishes["discriminator"]) if "discriminator" in wishes else self

    def with_discriminator(self, architecture: str) -> PsFedGan:
        """Return the method with another D_u for all clients; an unknown architecture is refused."""
        self.coding(architecture)
        kind, _, width = architecture.partition(":")
        return replace(self, d_architecture=kind, d_width=int(width), client_discriminators="")

    def coding(self, architecture: str) -> Coding:
        """Return the coding of discriminators of this architecture."""
        with torch.device("meta"):
            return Coding(self.d_coding, tensor_sizes(self.discriminator(architecture)))

    # -- auditing ---------------------------------------------------------------------------------------------------

    def eavesdropping(self) -> Eavesdropping:
        """Return what an eavesdropper can do with this method's messages (section 2.3)."""
        return Eavesdropping(self)


def _as_array(raw: bytes) -> Array:
    return np.frombuffer(raw, np.uint8)
