"""PS-FedGAN (Algorithm 1): only discriminators are sent; the server rebuilds each client's generator from them.

Wijesinghe, Zhang, Ding: PS-FedGAN: An Efficient Federated Learning Framework Based on Partially Shared Generative
Adversarial Networks For Data Privacy; 2023. Each user i has a conditional GAN. G_u on the user and G_s in the cloud
start from one secret seed. After each step of D_u the user publishes M_p = (D_u, z_t, l_t); both generators then take
the same step against that D_u, so G_s equals G_u bit for bit and is never sent. messages.py has M_p, twin.py the secret
seed and what happens after a lost or wrong message, cloud.py the images for C_l; baselines/fullgan.py sends G_u too.

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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.base import Broadcast, Model, PartSpec, Reply, ServerMessage, Sums, setting
from vitrail.methods.psfedgan import cloud, messages, networks, twin
from vitrail.methods.psfedgan.eavesdropping import Eavesdropping
from vitrail.methods.psfedgan.networks import Trained
from vitrail.nets.classifier import random_shift
from vitrail.nets.dcgan import DcganGenerator
from vitrail.nets.discriminators import DISCRIMINATORS, build_discriminator, initialise
from vitrail.nets.flat import from_vector, on_meta, tensor_sizes, to_vector
from vitrail.privacy.mechanism import Mechanism
from vitrail.utils.crypto import public
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, finite
from vitrail.wire.codecs import Array


@dataclass(frozen=True)
class PsFedGan(gan.PrivateGan):
    """PS-FedGAN: the settings, then Algorithm 1 from top to bottom."""

    privacy: Literal["none", "dp-sgd"] = setting(
        "none", "dp-sgd: noise on the gradients of D; everything else is computed from D (paper: none)"
    )
    steps_per_message: int = setting(10, "training steps, each with its D, in one message (paper: 1)", ge=1, le=1000)
    d_steps: int = setting(1, "iterations of D per step (paper: as D's architecture needs)", ge=1)
    batch_size: int = setting(
        16, "real images, and fakes, per step; dp-sgd: fakes per step, and divisor of the sum (paper: no value)", ge=2
    )
    width: int = setting(
        16,
        "channels of G's last hidden layer (paper: G of 1.5 million weights for MNIST, 3.82 million for CIFAR10)",
        ge=4,
        le=512,
    )
    latent_dim: int = setting(100, "dimension of the noise z (paper: no value)", ge=1, le=4096)
    d_architecture: str = setting(
        "dcgan",
        "architecture of D; psfedgan: client_discriminators sets it per client (paper: any)",
        check=DISCRIMINATORS.check,
    )
    d_width: int = setting(
        16,
        "width of D; psfedgan: client_discriminators sets it per client "
        "(paper: D of 1.5 million weights for MNIST, 2.98 million for CIFAR10)",
        ge=1,
        le=512,
    )
    lr: float = setting(2e-3, "learning rate of G (Adam) (paper: no value)", gt=0, le=1e3)
    d_lr: float = setting(1e-3, "learning rate of D (Adam) (paper: no value)", gt=0, le=1e3)
    beta1: float = setting(0.5, "Adam's β1 for G and D (paper: no value)", ge=0, lt=1)
    g_loss: Literal["nonsaturating", "minimax"] = setting("nonsaturating", "loss of G (paper: minimax, Eq. 10)")
    label_sets: Literal["auto", "declared", "all", "public"] = setting(
        "auto",
        "labels that fakes are drawn with. declared: those of the client's images, which it sends; "
        "all: every label; public: as declared, also with privacy; auto: declared, or all with privacy "
        "(paper: no value)",
    )
    ema_decay: float = setting(
        0.99, "decay per step of the server's moving average of G's weights (paper: 0)", ge=0, lt=1
    )
    classifier_rounds: int = setting(
        10, "final rounds in which C_l is trained; at most half of all (paper: after every N steps)", ge=0
    )
    classifier_steps: int = setting(120, "training steps of the classifier per such round (paper: no value)", ge=1)
    classifier_batch_size: int = setting(64, "images per training step of the classifier (paper: no value)", ge=2)
    real_fraction: float = setting(
        0.5, "fraction of the server's real images in a batch of the classifier (paper: no value)", ge=0, le=1
    )
    max_grad_norm: float = setting(
        1.0, "dp-sgd: norm to which one image's gradient is clipped (C) (ours)", ge=1e-6, le=1e4
    )
    sample_rate: float = setting(
        0.05, "dp-sgd: probability of an image to be in a step; public, as batch_size (ours)", gt=0, le=1
    )
    d_coding: Literal["plain", "delta", "int8", "int4"] = setting(
        "plain", "coding of D: plain (float32), delta (exact, coded differences), int8 or int4 (rounded) (ours)"
    )
    client_discriminators: str = setting(
        "", "clients whose D differs from d_architecture and d_width: NAME=ARCHITECTURE:WIDTH, ... (paper: any)"
    )
    key_source: Literal["agree", "file"] = setting(
        "agree",
        "secret seed of G. agree: by X25519 key agreement; file: from CLIENT.key in the folder "
        "VITRAIL_KEYS, on both sides (paper: agreed in advance)",
    )

    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 130, "server_fraction": 0.01}
    mechanisms: ClassVar[tuple[str, ...]] = ("dp-sgd",)
    c_lr: ClassVar[float] = 4e-3  # largest learning rate of C_l (AdamW; the schedule is in cloud.py)
    c_weight_decay: ClassVar[float] = 0.05
    label_smoothing: ClassVar[float] = 0.05  # of C_l's loss
    beta2: ClassVar[float] = 0.999  # Adam's β2 for G and D
    clients_key: ClassVar[str] = "twins"  # entry of the server's state with one dict per client
    released: ClassVar[str] = (  # what leaves a client under dp-sgd, for the ledger
        "the discriminator at every step, trained with noised gradients; a public key, or none with key_source=file; "
        "a keyed digest of G"
    )

    # -- for each user i: initialize G_u and G_s with the secret seed key_i, and D_u --------------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:
        """Create the server's private key, and store its real images for C_l; there are no generators yet."""
        if start is not None:
            raise VitrailError(
                "init_from=: the GANs of that run are in its clients' private files, not in its checkpoint; "
                "continue it with `vitrail resume`, or omit init_from="
            )
        usable = data is not None and self.task.classes and data.labels is not None and len(data)
        real = {"pixels": data.pixels, "labels": data.labels} if data is not None and usable else None
        key = self.source(rng.child("key"))(messages.KEY_BYTES)
        return {"rounds": 0, self.clients_key: {}, "real": real, "classifier": None, "key": key}

    def client_init(self, client: str, rng: Rng) -> State:
        """Create the client's private key; the GAN is initialized in its first round, with the server's key."""
        return {"name": client, "key": self.source(rng.child("key"))(messages.KEY_BYTES), "now": None, "before": None}

    def initial_generator(self, secret: twin.Secret, generation: int) -> State:
        """Initialize G_u, and G_s, using the secret seed key_i: user and cloud both do this, with the same result."""
        key_i = secret.seed(generation)
        G = twin.initialize(self.generator(), key_i)
        return {"generation": generation, "steps": 0, "generator": to_vector(G), "adam": None}

    def initial_discriminator(self, rng: Rng) -> State:
        """Initiate D_u on the user."""
        D_u = initialise(self.discriminator(self.architecture), rng.child("discriminator").torch())
        return {"architecture": self.architecture, "discriminator": to_vector(D_u), "d_adam": None}

    # (initiate C_l and train it using the cloud's data: later, in the final rounds; see finish_round)

    # -- for each communication round -------------------------------------------------------------------------------

    def start_round(self, server: State, clients: Sequence[str], rng: Rng) -> tuple[State, Sequence[str]]:  # noqa: ARG002
        """Request all clients, or none in C_l's rounds; a missing key file is reported before any request."""
        t = server["rounds"]
        chosen = clients if t < self.max_replies else ()
        for client in chosen if self.key_source == "file" else ():
            twin.secret_from_file(client)
        return {**server, "rounds": t + 1}, chosen

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """Send the server's public key, and the digest of the last state that both sides agreed on."""
        known = server["twins"].get(client)
        parts: dict[str, tuple[str, Array]] = {"generation": ("int32", np.array([known["generation"] if known else 0]))}
        if self.key_source == "agree":
            parts["key"] = ("bytes", _as_array(public(server["key"])))
        if known:
            parts["agreed"] = ("bytes", _as_array(known["digest"]))
        return Broadcast(parts)

    # -- user i: for each step t ------------------------------------------------------------------------------------

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Train from the last agreed state and publish the steps."""
        user = networks.with_discriminator_of(self, state["name"])
        own_key, server_key = public(state["key"]), message.parts["key"].tobytes() if "key" in message.parts else b""
        secret = self.shared_secret(state["name"], state["key"], own_key, server_key)
        before, sent_back = twin.last_agreed_state(user, state, message, secret, rng)
        seed, coding = rng.child("z").seed(), user.coding(user.architecture)
        G, D = networks.load_generator(user, before), networks.load_discriminator(user, before)
        published, decoded, *losses = map(np.array, zip(*user.train_user(G, D, data, seed, rng), strict=True))
        after: State = {**networks.user_state(before, len(published), G, D), "generation": before["generation"]}
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
        return {**state, "now": after, "before": before}, Reply(parts | messages.common_reply(user, data, losses))

    def train_user(
        self, G: Trained, D: Trained, data: Images, seed: int, rng: Rng
    ) -> Iterator[tuple[messages.Floats, messages.Floats, float, float]]:
        """Run the user's half of Algorithm 1 for all steps of one message.

        Yields:
            After each step: D_u, D_u as the cloud decodes it, and the losses of G_u and D_u.
        """
        (G_u, opt_g), (D_u, _) = G, D
        coding, labels = self.coding(self.architecture), messages.labels_of(self, data)
        D_decoded = self.discriminator(self.architecture).to(self.task.device).train()
        with one_thread(), torch.enable_grad():
            for t in range(self.steps_per_message):
                for j in range(self.d_steps - 1, 0, -1):  # "multiple iterations of D_u training" (section 2.2.2)
                    fakes = networks.fakes_for_discriminator(G_u, self.noise(seed, t, labels, j))
                    self.train_discriminator(D, data, fakes, rng.child("step", t, j))
                # z_t, l_t <- random vectors, random labels
                z_t, l_t = self.noise(seed, t, labels)
                fakes = G_u(z_t, l_t), l_t
                # Train D_u: D_u^(t+1) <- F(G_u^(t)(z_t, l_t), D_u^(t))
                loss_d = self.train_discriminator(D, data, fakes, rng.child("step", t, 0))
                # Share M_p(D_u^(t+1), z_t, l_t)
                published = to_vector(D_u)
                decoded = coding.round(published)
                # Train G_u: G_u^(t+1) <- F(G_u^(t)(z_t, l_t), D_u^(t+1))
                loss_g = self.train_generator(opt_g, from_vector(D_decoded, decoded), fakes)
                networks.check_finite(G_u)
                yield published, decoded, loss_g, loss_d

    # -- cloud: for each step t -------------------------------------------------------------------------------------

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
        start = average = before or self.initial_generator(secret, generation)
        G_s, optimizer = networks.load_generator(self, start)
        for _ in self.train_cloud(G_s, optimizer, published):
            average = cloud.update_average(self, average, to_vector(G_s))
        steps = start["steps"] + self.steps_per_message
        after: State = {**networks.generator_state(steps, G_s, optimizer), "generation": generation}
        digest = twin.digest(after, published.discriminators, secret)
        twin.check_equal(digest, parts["digest"].tobytes(), steps, self.key_source)
        if not finite({**after, **average}):
            raise Malformed(f"G or its Adam is no longer finite after {steps} steps; lower lr")
        after |= {"key": client_key, "digest": digest, "labels": list(published.labels), **published.state(), **average}
        return cloud.store_user(self, server, client, after)

    def train_cloud(
        self, G_s: nn.Module, optimizer: torch.optim.Adam, published: messages.Published
    ) -> Iterator[float]:
        """Run the cloud's half of Algorithm 1 for all steps of one message; yield the loss of G_s after each."""
        with one_thread(), torch.enable_grad():
            D_u = self.discriminator(published.architecture).to(self.task.device).train()
            for t, vector in enumerate(published.discriminators):
                z_t, l_t = self.noise(published.seed, t, published.labels)
                # Train G_s: G_s^(t+1) <- F(G_s^(t)(z_t, l_t), D_u^(t+1))
                yield self.train_generator(optimizer, from_vector(D_u, vector), (G_s(z_t, l_t), l_t))

    # -- F: forward and back propagation, and weight updates --------------------------------------------------------

    def train_discriminator(self, D: Trained, data: Images, fakes: gan.Batch, rng: Rng) -> float:
        """F for D_u: one step on real images and fakes, with noise under dp-sgd; return the loss, 0 under dp-sgd."""
        D_u, optimizer = D
        loss = torch.zeros(())
        if self.mechanism is not None:
            self.private_step(D_u, optimizer, data, (fakes[0].detach(), fakes[1]), self.source(rng.child("noise")))
        else:
            pick = rng.child("real").numpy().choice(len(data), min(self.batch_size, len(data)), replace=False)
            loss = gan.d_loss(D_u, gan.image_batch(data, pick, self.task), fakes)
            gan.step(optimizer, loss)
        networks.check_finite(D_u)
        return float(loss.detach())

    def train_generator(self, optimizer: torch.optim.Adam, D_u: nn.Module, fakes: gan.Batch) -> float:
        """F for G_u and G_s: one step against D_u; `fakes` are G(z_t, l_t) with their graph, and l_t."""
        x, l_t = fakes
        D_u.requires_grad_(False)  # trained on the client, never on the server: both must build the same graph
        loss = gan.g_loss(D_u(x, l_t), self.g_loss)
        gan.step(optimizer, loss)
        D_u.requires_grad_(True)
        return float(loss.detach())

    # -- Train C_l with cloud data and synthetic data, in the final rounds ------------------------------------------

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """Train C_l on samples of all G_s and the server's real images."""
        done, n = server["rounds"] - 1 - self.max_replies, self.classifier_steps
        if sums.clients or done < 0 or not server[self.clients_key]:
            return server
        mixture, draw = cloud.mixture(self, server), rng.child("draws").torch()
        with one_thread(), torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(rng.child("network").seed())  # torch's initialization and dropout use the global state
            C_l, optimizer = cloud.load_classifier(self, server["classifier"])
            for step in range(done * n, (done + 1) * n):
                x, l = cloud.draw_batch(self, mixture, server["real"], draw)  # noqa: E741
                optimizer.param_groups[0]["lr"] = self.c_lr * cloud.schedule(step / (self.num_classifier_rounds * n))
                # C_l^(t+1) <- F(C_l^(t))
                loss = F.cross_entropy(C_l(random_shift(x, draw)), l, label_smoothing=self.label_smoothing)
                gan.step(optimizer, loss)
        return {**server, "classifier": {"network": to_vector(C_l), "adam": optimizer.state_dict()["state"]}}

    def export_models(self, server: State, client: State | None = None) -> Mapping[str, Model]:
        """Return the mixture of all G, and C_l once it is trained; with a client's state, that client's G."""
        if client is not None:
            return gan.generator_model(client["now"]["generator"], self.task, self.width, self.latent_dim)
        return cloud.export_models(self, server)

    # -- What both sides know ---------------------------------------------------------------------------------------

    def generator(self) -> DcganGenerator:
        """Build G, not yet initialized."""
        return DcganGenerator(self.task.shape, self.task.classes, self.width, self.latent_dim)

    def discriminator(self, name: str) -> nn.Module:
        """Build the discriminator that a message names, such as "dcgan:16"."""
        return build_discriminator(name, self.task.shape, self.task.classes)

    @property
    def architecture(self) -> str:
        """The name of this client's D_u."""
        return f"{self.d_architecture}:{self.d_width}"

    def noise(self, seed: int, t: int, labels: Sequence[int], j: int = 0) -> gan.Batch:
        """Draw z_t and l_t from a seed, l_t from these labels; j > 0: for a further iteration of D."""
        draw = Rng((seed,)).child("step", t, j).torch()
        z = torch.randn(self.batch_size, self.latent_dim, generator=draw).to(self.task.device)
        if not self.task.classes:
            return z, None
        drawn = torch.tensor(labels)[torch.randint(len(labels), (self.batch_size,), generator=draw)]
        return z, drawn.to(self.task.device)

    def shared_secret(self, client: str, private: bytes, client_key: bytes, server_key: bytes) -> twin.Secret:
        """Return the secret that a client and the server share, given one's private key and both public keys."""
        if self.key_source == "file":
            return twin.secret_from_file(client)
        return twin.agree_on_secret(private, client_key, server_key, client)

    @property
    def num_classifier_rounds(self) -> int:
        """The number of final rounds without clients, for the classifier."""
        return min(self.classifier_rounds, self.task.rounds // 2) if self.task.classes else 0

    @property
    def max_replies(self) -> int:
        """Clients reply in all rounds but those of the classifier."""
        return self.task.rounds - self.num_classifier_rounds

    @property
    def num_async_rounds(self) -> int:
        """No client waits for another: the server's state of one client depends on its own replies only."""
        return self.max_replies

    def reply_spec(self) -> Mapping[str, PartSpec]:
        return messages.reply_spec(self)

    def base_mechanism(self) -> Mechanism | None:
        return None if self.privacy == "none" else messages.build_mechanism(self)

    def coding(self, architecture: str) -> messages.Coding:
        """Return the coding of discriminators of this architecture."""
        return messages.Coding(self.d_coding, tensor_sizes(on_meta(self.discriminator, architecture)))

    def with_client_overrides(self, wishes: Mapping[str, str]) -> PsFedGan:
        """Apply the override `discriminator`, such as "dense:32", of a client's owner."""
        return networks.with_discriminator(self, wishes["discriminator"]) if "discriminator" in wishes else self

    def for_audit(self) -> PsFedGan:
        """Return the method with plain D and agreed keys: coded or rounded D contain no more than plain ones."""
        return replace(self, d_coding="plain", key_source="agree")

    def eavesdropping(self) -> Eavesdropping | None:
        """Return what an eavesdropper can do with this method's messages (section 2.3)."""
        return Eavesdropping(self)


def _as_array(raw: bytes) -> Array:
    return np.frombuffer(raw, np.uint8)
