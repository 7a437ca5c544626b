"""PS-FedGAN: An Efficient Federated Learning Framework Based on Partially Shared Generative Adversarial Networks.

Wijesinghe, Zhang, Ding; 2023. Each user i has a conditional GAN. G_u on the client and G_s on the server begin from one
secret seed. At every step t the client trains D_u on real pictures and G_u's fakes and publishes (D_u, z_t, l_t); then
both generators take the same step against that D_u (Algorithm 1). So G_s is G_u to the last bit and G never travels. In
the end the server trains a classifier C on samples of all G_s and the few real pictures it holds.

One message carries `steps` steps: every D_u as float32, exactly; one public seed for all z_t and l_t; the name of D_u's
architecture; and a keyed digest (HMAC) of G_u. The server replays the steps on G_s. Where the digests differ, nothing
of the round is kept, the client is left out with that reason, and the way back never sends G: a message names the last
state that both agreed on. A client keeps that state until the next one is acknowledged; one that has lost it begins
anew from the next secret seed, and so does the server. A lost reply, a killed client and a wrong bit all end there.
No user waits for another (`free_rounds`).

What leaves a client: its D's, its public key, and the set of labels that it has pictures of (no counts), for l_t is
drawn from these: of other labels D_u only ever sees fakes, so G would learn nothing. label_sets=all keeps the set back.

What differs from the paper: the secret seed is agreed on by X25519, anew for each client; C is trained in rounds of the
server at the end, not from the start; D has GroupNorm, so that it is all in its weights; d_steps > 1 draws more fakes.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from vitrail.data.pictures import Pictures
from vitrail.errors import Malformed, VitrailError
from vitrail.methods import gan
from vitrail.methods import psfedgan_classifier as classifier
from vitrail.methods import psfedgan_message as messages
from vitrail.methods import psfedgan_twin as twins
from vitrail.methods import psfedgan_user as user
from vitrail.methods.base import Declared, Incoming, Model, Outgoing, Reply, Sums
from vitrail.methods.psfedgan_settings import PsFedGanSettings
from vitrail.nets.classifier import classifier as network
from vitrail.nets.dcgan import Generator
from vitrail.nets.discriminators import discriminator
from vitrail.nets.flat import from_vector, vector_size
from vitrail.nets.mixture import Mixture, knows
from vitrail.privacy import dpsgd
from vitrail.privacy.mechanism import Mechanism
from vitrail.privacy.primitives import public
from vitrail.rng import Rng
from vitrail.state import State
from vitrail.wire.codecs import Array

DIGEST = 32  # bytes of a key, and of a digest


@dataclass(frozen=True)
class PsFedGan(PsFedGanSettings):
    """PS-FedGAN's two halves."""

    def generator(self) -> Generator:
        """G_u or G_s, not yet initialised."""
        return Generator(self.task.shape, self.task.classes, self.width, self.z)

    def discriminator(self, name: str) -> nn.Module:
        """D_u as a message names it."""
        return discriminator(name, self.task.shape, self.task.classes)

    @property
    def architecture(self) -> str:
        """The name of this party's own D_u."""
        return f"{self.d_kind}:{self.d_width}"

    def adam(self, net: nn.Module, state: State | None, lr: float | None = None) -> torch.optim.Adam:
        """A network's Adam, at G's rate or another, its averages new or as they were."""
        return gan.adam(net, lr or self.lr, (self.beta1, 0.999), state)

    @property
    def alone(self) -> int:
        """How many of the last rounds are the server's, for its classifier."""
        return min(self.classifier_rounds, self.task.rounds // 2) if self.task.classes else 0

    @property
    def most_answers(self) -> int:
        """Clients answer before the classifier is trained."""
        return self.task.rounds - self.alone

    @property
    def free_rounds(self) -> int:
        """Users do not depend on each other: G_s of one follows from its own replies."""
        return self.most_answers

    @property
    def says_labels(self) -> bool:
        """Whether a client says which labels it has."""
        return bool(self.task.classes) and self.label_sets != "all" and self.privacy == "none"

    def unnoised(self) -> Mechanism | None:
        if self.privacy == "none":
            return None
        if self.label_sets == "declared":
            raise VitrailError(
                "privacy=dp-sgd with label_sets=declared: the set of a client's labels would leave without noise; "
                "use label_sets=all"
            )
        with torch.device("meta"):
            dpsgd.check(self.discriminator(self.architecture))
        what = "the discriminator at every step, trained with noised gradients; a public key; a keyed digest of G"
        return dpsgd.mechanism(self.clip, self.sample_rate, self.steps * self.d_steps, what)

    def declares(self) -> Mapping[str, Declared]:
        bare = self.mechanism is not None
        one = Declared("sum", "float32", 1)
        codec = "float32" if self.d_coding == "plain" else "bytes"
        with torch.device("meta"):
            numbers = self.steps * vector_size(self.discriminator(self.architecture))
        parts = {
            "digest": Declared("each", "bytes", DIGEST),
            "key": Declared("each", "bytes", DIGEST),
            "generation": Declared("each", "int32", 1),
            "seed": Declared("each", "seed", 1),
            "architecture": Declared("each", "bytes", None, limit_bytes=40),
            "discriminators": Declared("each", codec, None, numbers=numbers),
            "metric.sent_back": one,
        }
        if self.says_labels:
            parts["labels"] = Declared("each", "u1", self.task.classes)
        return parts if bare else {**parts, "metric.loss_g": one, "metric.loss_d": one}

    # -- both sides -----------------------------------------------------------------------------------------------

    def twin(self, kept: State) -> twins.Twin:
        """G_u or G_s as it is kept."""
        return twins.Twin(self.generator().to(self.task.device), self.adam, kept)

    def noise(self, seed: int, t: int, labels: Sequence[int], j: int = 0) -> gan.Batch:
        """z_t and l_t of a public seed; l_t is one of these labels. j > 0: of D's further iterations."""
        draw = Rng((seed,)).child("step", t, j).torch()
        z = torch.randn(self.batch, self.z, generator=draw).to(self.task.device)
        if not self.task.classes:
            return z, None
        some = torch.tensor(labels)[torch.randint(len(labels), (self.batch,), generator=draw)]
        return z, some.to(self.task.device)

    def remembered(self, rows: Array, before: Array | None) -> Array | None:
        """What both sides remember of the D's that were published: what the next ones are coded under."""
        if self.d_coding == "plain":
            return None
        return np.array(rows[-2:] if before is None else np.vstack([before, rows])[-2:], np.float32)

    # -- server ---------------------------------------------------------------------------------------------------

    def server_init(self, rng: Rng, data: Pictures | None = None, start: State | None = None) -> State:
        """A key of the server's own, no generator yet, and the real pictures for C."""
        if start is not None:
            raise VitrailError(
                "from=: what a run of psfedgan has learned is tied to the secrets of its clients, which stay in that "
                "run's folder; `vitrail resume` goes on there, or leave from= out"
            )
        held = data if data is not None and self.task.classes and data.labels is not None and len(data) else None
        return {
            "rounds": 0,
            "key": self.source(rng.child("key"))(DIGEST),
            "twins": {},
            "real": None if held is None else {"pixels": held.pixels, "labels": held.labels},
            "classifier": None,
        }

    def open_round(self, server: State, clients: Sequence[str], rng: Rng) -> tuple[State, Sequence[str]]:  # noqa: ARG002
        """Clients first; the last rounds are the server's."""
        t = server["rounds"]
        return {**server, "rounds": t + 1}, clients if t < self.most_answers else ()

    def broadcast(self, server: State, client: str, full: bool) -> Outgoing:  # noqa: ARG002
        """The server's public key, and the name of the last state that both agreed on."""
        twin = server["twins"].get(client)
        parts: dict[str, tuple[str, Array]] = {"key": ("bytes", user.as_bytes(public(server["key"])))}
        parts["generation"] = ("int32", np.array([twin["generation"] if twin else 0]))
        if twin:
            parts["agreed"] = ("bytes", user.as_bytes(twin["digest"]))
        return Outgoing(parts)

    def receive(self, server: State, client: str, parts: Mapping[str, Array]) -> State:
        """Replay a client's steps on its G_s, and keep them if both sides now have the same."""
        kept, key, generation = server["twins"].get(client), parts["key"].tobytes(), int(parts["generation"][0])
        secret = twins.secret_between(server["key"], key, public(server["key"]), client)
        goes_on = kept is not None and (kept["generation"], kept["key"]) == (generation, key)
        if not goes_on and generation != (kept["generation"] + 1 if kept else 0):
            raise Malformed(f"it answers for generation {generation} of G, which was not asked for")
        said = messages.read(self, parts, kept if goes_on else None)
        twin = self.twin(kept if goes_on else twins.begin(self.generator(), secret, generation))
        messages.replay(self, twin, said)
        after = twin.state()
        digest = twins.digest(after, said.discriminators, secret)
        if not hmac.compare_digest(digest, parts["digest"].tobytes()):
            raise Malformed(
                f"G_s differs from G_u after {twin.steps} steps; both go back to the last state they agreed on (if it "
                "goes on, the two machines compute differently: use the same torch version and kind of processor)"
            )
        if not twins.finite(after):
            raise Malformed(f"G is no longer finite after {twin.steps} steps; lower lr")
        after |= {"key": key, "digest": digest, "labels": list(said.labels), **said.kept()}
        return {**server, "twins": dict(sorted({**server["twins"], client: after}.items()))}

    def close_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """In the last rounds, train C; everything else was done as replies came."""
        done = server["rounds"] - 1 - self.most_answers
        if sums.clients or done < 0 or not server["twins"]:
            return server
        real = None if server["real"] is None else Pictures(server["real"]["pixels"], server["real"]["labels"])
        lessons = classifier.Lessons(self.task, self.mixture(server), real, self.classifier_batch, self.real_share)
        n = self.classifier_steps
        steps = range(done * n, (done + 1) * n)
        return {**server, "classifier": classifier.train(server["classifier"], lessons, steps, self.alone * n, rng)}

    def mixture(self, server: State) -> Mixture:
        """All G_s as one generator."""
        found = [server["twins"][client] for client in sorted(server["twins"])]
        parts = [from_vector(self.generator(), twin["generator"]).eval() for twin in found]
        return Mixture(parts, self.z, knows([twin["labels"] for twin in found], self.task.classes))

    def products(self, server: State, client: State | None = None) -> Mapping[str, Model]:
        """The mixture over all G_s, and the classifier once there is one; or a client's own G_u."""
        if client is not None:
            return gan.product(client["now"]["generator"], self.task, self.width, self.z)
        found = [server["twins"][name] for name in sorted(server["twins"])]
        parts = [from_vector(self.generator(), twin["generator"]).state_dict() for twin in found]
        about = {"shape": list(self.task.shape), "classes": self.task.classes}
        mixed = {**about, "width": self.width, "z": self.z, "labels": [twin["labels"] for twin in found]}
        made = {"generator": Model("mixture", {**mixed, "parts": parts})}
        if server["classifier"] is not None:
            C = from_vector(network(self.task.shape[0], self.task.classes), server["classifier"]["network"])
            made["classifier"] = Model("classifier", {**about, "weights": C.state_dict()})
        return made

    # -- client ---------------------------------------------------------------------------------------------------

    def client_init(self, client: str, rng: Rng) -> State:
        """A key of its own; everything else begins with the server's."""
        return {"name": client, "key": self.source(rng.child("key"))(DIGEST), "now": None, "before": None}

    def client_round(self, state: State, message: Incoming, data: Pictures, rng: Rng) -> tuple[State, Reply]:
        """Algorithm 1, user side, for all steps of one message."""
        return user.client_round(self, state, message, data, rng)
