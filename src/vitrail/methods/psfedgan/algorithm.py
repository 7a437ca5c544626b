"""PS-FedGAN: An Efficient Federated Learning Framework Based on Partially Shared Generative Adversarial Networks.

Wijesinghe, Zhang, Ding; 2023. Each user i has a conditional GAN. G_u on the client and G_s on the server begin from one
secret seed. At every step t the client trains D_u on real pictures and G_u's fakes and publishes (D_u, z_t, l_t); then
both generators take the same step against that D_u (Algorithm 1). So G_s is G_u to the last bit and G never travels. In
the end the server trains a classifier C on samples of all G_s and the few real pictures it holds.

One message carries `steps` steps: every D_u, exactly or rounded (d_coding); one public seed for all z_t and l_t; the
name of D_u's architecture; and a keyed digest (HMAC) of G_u. Where D_u is rounded, both generators step against what
was rounded, as in a channel with quantisation (section 3.3); D_u itself goes on in float32. The server replays the
steps on G_s. Where the digests differ, nothing of the round is kept, the client is left out with that reason, and the
way back never sends G: a message names the last state that both agreed on. A client keeps that state until the next one
is acknowledged; one that has lost it begins anew from the next secret seed, and so does the server. A lost reply, a
killed client and a wrong bit all end there. No user waits for another (`num_async_rounds`).

What leaves a client: its D's, its public key, and the set of labels that it has pictures of (no counts), for l_t is
drawn from these: of other labels D_u only ever sees fakes, so G would learn nothing. label_sets=all keeps the set back.

What differs from the paper: the secret seed is agreed on by X25519, anew for each client (key_source=file: from a file
that both were given, as the paper presumes); C is trained in rounds of the server at the end, not from the start; D has
GroupNorm, so that it is all in its weights; d_steps > 1 draws more fakes.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from vitrail.data.dataset import Images
from vitrail.engines.secagg.primitives import public
from vitrail.methods.base import Broadcast, PartSpec, Reply, ServerMessage
from vitrail.methods.psfedgan import messages, user
from vitrail.methods.psfedgan import twin as twins
from vitrail.methods.psfedgan.coding import Coding
from vitrail.methods.psfedgan.local_gan import LocalGan
from vitrail.methods.psfedgan.settings import PsFedGanSettings
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, finite
from vitrail.wire.codecs import Array

DIGEST = 32  # bytes of a key, and of a digest
D_BYTES = 2**28  # what a client's discriminators may take, where it has others than the run's
# What discriminators of one message may take when they are decoded: what the run's settings give, or D_FREE bytes, or
# D_CODED bytes for each coded byte. At d_coding=int4 and half a bit per number a coded byte stands for 64 bytes.
D_FREE, D_CODED = 2**24, 64


@dataclass(frozen=True)
class PsFedGan(PsFedGanSettings, LocalGan):
    """PS-FedGAN's two halves; what it does with its generators is in localgan.py."""

    users: ClassVar[str] = "twins"
    leaves: ClassVar[str] = (
        "the discriminator at every step, trained with noised gradients; a public key, or none with key_source=file; "
        "a keyed digest of G"
    )

    def reply_spec(self) -> Mapping[str, PartSpec]:
        numbers = self.planned_numbers()
        most = max(D_BYTES, self.fits(max(numbers)) if self.d_coding == "plain" else 4 * max(numbers))
        codec, coded = ("float32", None) if self.d_coding == "plain" else ("bytes", numbers[0])
        shape = (self.steps_per_message, None) if self.d_coding == "plain" else (None,)
        parts = {
            "digest": PartSpec("each", "bytes", DIGEST),
            "generation": PartSpec("each", "int32", 1),
            "seed": PartSpec("each", "seed", 1),
            "architecture": PartSpec("each", "bytes", None, limit_bytes=40),
            "discriminators": PartSpec("each", codec, None, limit_bytes=most, numbers=coded, shape=shape),
            "metric.sent_back": PartSpec("sum", "float32", 1),
        }
        if self.key_source == "agree":
            parts["key"] = PartSpec("each", "bytes", DIGEST)
        return parts | self.declares_besides()

    # -- both sides -----------------------------------------------------------------------------------------------

    def planned_numbers(self) -> list[int]:
        """The numbers in one message: with the run's D first, then with each D of d_own."""
        users = [self, *map(self.of, self.own_discriminators)]  # what cannot be built shows here
        return [u.steps_per_message * sum(u.coding(u.architecture).sizes) for u in users]

    @property
    def own_discriminators(self) -> dict[str, str]:
        """The architecture of each client that has another D_u than the others."""
        pairs = [word.strip().rpartition("=") for word in self.client_discriminators.split(",") if word.strip()]
        return {name.strip(): architecture.strip() for name, _, architecture in pairs}

    def of(self, client: str) -> PsFedGan:
        """The method as a client plays it, with a D_u of its own where it has one."""
        architecture = self.own_discriminators.get(client)
        if architecture is None:
            return self
        try:
            return self.with_discriminator(architecture if client else "")
        except VitrailError as e:
            raise VitrailError(
                f"client_discriminators={self.client_discriminators}: {e}; write NAME=dense:32, say"
            ) from e

    def with_client_overrides(self, wishes: Mapping[str, str]) -> PsFedGan:
        """A client's owner may choose its D_u."""
        return self.with_discriminator(wishes["discriminator"]) if "discriminator" in wishes else self

    def with_discriminator(self, architecture: str) -> PsFedGan:
        """The method of a client that prefers this D_u."""
        with torch.device("meta"):
            self.discriminator(architecture)  # refused where it is not known
        kind, _, width = architecture.partition(":")
        return replace(self, d_architecture=kind, d_width=int(width), client_discriminators="")  # type: ignore[arg-type]

    def coding(self, architecture: str) -> Coding:
        """How D's of an architecture travel."""
        with torch.device("meta"):
            return Coding.of(self.d_coding, self.discriminator(architecture))

    def check_decoded_size(self, coding: Coding, sent: Array) -> None:
        """Refuse discriminators that would take far more memory than the message and the settings account for."""
        decoded = 4 * self.steps_per_message * sum(coding.sizes)
        most = max(4 * max(self.planned_numbers()), D_FREE, D_CODED * sent.nbytes)
        if decoded > most:
            raise Malformed(
                f"{sent.nbytes:,} bytes of discriminators of an architecture that takes {decoded:,} bytes; "
                f"at most {most:,} are decoded"
            )

    def shared(self, client: str, own: bytes, client_key: bytes, server_key: bytes) -> twins.Secret:
        """What a client and the server share: from one's private key and both public ones, or from a file."""
        if self.key_source == "file":
            return twins.secret_given(client)
        return twins.secret_between(own, client_key, server_key, client)

    # -- server ---------------------------------------------------------------------------------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:
        """A key of the server's own, no generator yet, and the real pictures for C."""
        return {**super().server_init(rng, data, start), "key": self.source(rng.child("key"))(DIGEST)}

    def start_round(self, server: State, clients: Sequence[str], rng: Rng) -> tuple[State, Sequence[str]]:
        """Clients first; the last rounds are the server's. A file that it lacks shows before anybody is asked."""
        server, who = super().start_round(server, clients, rng)
        for client in who if self.key_source == "file" else ():
            twins.secret_given(client)
        return server, who

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """The server's public key, and the name of the last state that both agreed on."""
        twin = server["twins"].get(client)
        parts: dict[str, tuple[str, Array]] = {"generation": ("int32", np.array([twin["generation"] if twin else 0]))}
        if self.key_source == "agree":
            parts["key"] = ("bytes", user.as_bytes(public(server["key"])))
        if twin:
            parts["agreed"] = ("bytes", user.as_bytes(twin["digest"]))
        return Broadcast(parts)

    def receive(self, server: State, client: str, parts: Mapping[str, Array]) -> State:
        """Replay a client's steps on its G_s, and keep them if both sides now have the same."""
        kept, generation = server["twins"].get(client), int(parts["generation"][0])
        key = parts["key"].tobytes() if self.key_source == "agree" else b""
        secret = self.shared(client, server["key"], key, public(server["key"]))
        goes_on = kept is not None and (kept["generation"], kept["key"]) == (generation, key)
        if not goes_on and generation != (kept["generation"] + 1 if kept else 0):
            raise Malformed(f"it answers for generation {generation} of G, which was not asked for")
        said = messages.read(self, parts, kept if goes_on else None)
        twin = self.learner(kept if goes_on else twins.begin(self.generator(), secret, generation))
        mean = self.averaged(kept if goes_on else None, (G for _, G in messages.replay(self, twin, said)))
        after = {**twin.state(), "generation": generation}
        digest = twins.digest(after, said.discriminators, secret)
        if not hmac.compare_digest(digest, parts["digest"].tobytes()):
            raise Malformed(
                f"G_s differs from G_u after {twin.steps} steps; both go back to the last state they agreed on (if it "
                "goes on, the two machines compute differently: use the same torch version and kind of processor"
                + ("; or the two have different key files)" if self.key_source == "file" else ")")
            )
        if not finite({**after, **mean}):
            raise Malformed(f"G or its Adam is no longer finite after {twin.steps} steps; lower lr")
        after |= {"key": key, "digest": digest, "labels": list(said.labels), **said.kept(), **mean}
        self.check_images(after)
        return {**server, "twins": dict(sorted({**server["twins"], client: after}.items()))}

    # -- client ---------------------------------------------------------------------------------------------------

    def client_init(self, client: str, rng: Rng) -> State:
        """A key of its own; everything else begins with the server's."""
        return {"name": client, "key": self.source(rng.child("key"))(DIGEST), "now": None, "before": None}

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Algorithm 1, user side, for all steps of one message."""
        return user.client_round(self.of(state["name"]), state, message, data, rng)
