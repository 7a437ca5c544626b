"""Base of the methods in which each client trains its own conditional GAN: psfedgan and fullgan.

It has their common settings and what the server does once it has each client's G: the mixture of all G, and the
classifier C_l trained on it. How G reaches the server is the subclass's part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import AfterValidator, Field
from torch import nn

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.base import Model, PartSpec, Sums
from vitrail.methods.private import PrivateMethod
from vitrail.methods.psfedgan.classifier import draw_batch, train_classifier
from vitrail.nets.classifier import build_classifier
from vitrail.nets.dcgan import DcganGenerator
from vitrail.nets.discriminators import DISCRIMINATORS, build_discriminator
from vitrail.nets.flat import from_vector
from vitrail.nets.mixture import Mixture, known_classes
from vitrail.privacy import dpsgd
from vitrail.privacy.mechanism import Mechanism
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire.codecs import Array
from vitrail.wire.message import LARGEST


@dataclass(frozen=True)
class LocalGan(PrivateMethod):
    """A conditional GAN per client; a mixture of all generators and a classifier on the server.

    A subclass implements `reply_spec`, `broadcast`, `client_init`, `client_round` and `receive`, and sets `clients_key`
    and `released`. Under `server[clients_key][client]` the server's state has at least `average` and `labels`.
    """

    privacy: Annotated[
        Literal["none", "dp-sgd"],
        Field(description="dp-sgd: noise on the gradients of D; everything else is computed from D"),
    ] = "none"
    steps_per_message: Annotated[
        int, Field(ge=1, le=1000, description="training steps, each with its D, in one message (paper: 1)")
    ] = 10
    d_steps: Annotated[int, Field(ge=1, description="iterations of D per step")] = 1
    batch_size: Annotated[
        int,
        Field(ge=2, description="real images, and fakes, per step; dp-sgd: fakes per step, and divisor of the sum"),
    ] = 16
    width: Annotated[int, Field(ge=4, le=512, description="channels of G's last hidden layer")] = 16
    latent_dim: Annotated[int, Field(ge=1, le=4096, description="dimension of the noise z")] = 100
    d_architecture: Annotated[
        str,
        AfterValidator(DISCRIMINATORS.check),
        Field(description="architecture of D; psfedgan: client_discriminators sets it per client"),
    ] = "dcgan"
    d_width: Annotated[
        int, Field(ge=1, le=512, description="width of D; psfedgan: client_discriminators sets it per client")
    ] = 16
    lr: Annotated[float, Field(gt=0, le=1e3, description="learning rate of G (Adam)")] = 2e-3
    d_lr: Annotated[float, Field(gt=0, le=1e3, description="learning rate of D (Adam)")] = 1e-3
    beta1: Annotated[float, Field(ge=0, lt=1, description="Adam's β1 for G and D")] = 0.5
    g_loss: Annotated[Literal["nonsaturating", "minimax"], Field(description="loss of G")] = "nonsaturating"
    label_sets: Annotated[
        Literal["auto", "declared", "all", "public"],
        Field(
            description="labels that fakes are drawn with. declared: those of the client's images, which it sends; "
            "all: every label; public: as declared, also with privacy; auto: declared, or all with privacy"
        ),
    ] = "auto"
    ema_decay: Annotated[
        float, Field(ge=0, lt=1, description="decay per step of the server's moving average of G's weights")
    ] = 0.99
    classifier_rounds: Annotated[
        int, Field(ge=0, description="final rounds in which the server trains its classifier; at most half of all")
    ] = 10
    classifier_steps: Annotated[int, Field(ge=1, description="training steps of the classifier per such round")] = 120
    classifier_batch_size: Annotated[int, Field(ge=2, description="images per training step of the classifier")] = 64
    real_fraction: Annotated[
        float, Field(ge=0, le=1, description="fraction of the server's real images in a batch of the classifier")
    ] = 0.5
    max_grad_norm: Annotated[
        float, Field(ge=1e-6, le=1e4, description="dp-sgd: norm to which one image's gradient is clipped (C)")
    ] = 1.0
    sample_rate: Annotated[
        float, Field(gt=0, le=1, description="dp-sgd: probability of an image to be in a step; public, as batch_size")
    ] = 0.05

    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 130, "server_fraction": 0.01}
    mechanisms: ClassVar[tuple[str, ...]] = ("dp-sgd",)
    clients_key: ClassVar[str]  # entry of the server's state with one dict per client
    released: ClassVar[str]  # what leaves a client under dp-sgd, for the ledger

    # -- networks and noise ---------------------------------------------------------------------------------------

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

    # -- what leaves a client -------------------------------------------------------------------------------------

    @property
    def sends_labels(self) -> bool:
        """Whether a client sends the set of its labels."""
        sent = ("declared", "auto", "public") if self.privacy == "none" else ("public",)
        return bool(self.task.classes) and self.label_sets in sent

    def labels_of(self, data: Images) -> list[int]:
        """Return the labels that l_t is drawn from: those of the client's images, or all."""
        if self.sends_labels and data.labels is not None:
            return [int(y) for y in np.unique(data.labels)]
        return list(range(self.task.classes))

    def base_mechanism(self) -> Mechanism | None:
        if self.privacy == "none":
            return None
        if self.label_sets == "declared":
            raise VitrailError(
                "privacy=dp-sgd with label_sets=declared: the set of a client's labels would leave without noise; "
                "use label_sets=all, or, if that set may be public, label_sets=public"
            )
        with torch.device("meta"):
            dpsgd.check(self.discriminator(self.architecture))
        noised = dpsgd.mechanism(
            self.max_grad_norm, self.sample_rate, self.steps_per_message * self.d_steps, self.released
        )
        if not self.sends_labels:
            return noised
        public = "which labels a client has images of"
        return replace(noised, public=public, leaves=f"{noised.leaves}; without noise, {public}")

    def check_message_size(self, n: int) -> int:
        """Return the number of bytes of n float32 values.

        Raises:
            VitrailError: If they do not fit into one message.
        """
        if 4 * n > LARGEST - 2**20:
            raise VitrailError(
                f"steps_per_message={self.steps_per_message}: {4 * n:,} bytes in one message, more than "
                f"{LARGEST:,}: use fewer steps and more rounds, or narrower networks"
            )
        return 4 * n

    def common_parts(self) -> dict[str, PartSpec]:
        """Declare labels and losses, where they may be sent."""
        parts = {"labels": PartSpec("each", "u1", self.task.classes)} if self.sends_labels else {}
        one = PartSpec("sum", "float32", 1)
        return parts if self.mechanism is not None else {**parts, "metric.loss_g": one, "metric.loss_d": one}

    def common_reply(self, data: Images, losses: Array) -> dict[str, Any]:
        """Return the parts that `common_parts` declares; `losses` are those of G and of D."""
        parts: dict[str, Any] = {}
        if self.sends_labels:
            parts["labels"] = np.isin(np.arange(self.task.classes), self.labels_of(data))
        if self.mechanism is None:
            parts |= {"metric.loss_g": losses[:1], "metric.loss_d": losses[1:]}
        return parts

    def read_labels(self, parts: Mapping[str, Array]) -> list[int]:
        """Return the labels of a reply; all, where clients send none."""
        labels = [int(y) for y in np.flatnonzero(parts["labels"])] if self.sends_labels else range(self.task.classes)
        if self.task.classes and not labels:
            raise Malformed("the reply declares no label; a client has at least one")
        return list(labels)

    # -- server: generators ---------------------------------------------------------------------------------------

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

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:  # noqa: ARG002
        """Start without generators; store the server's real images for C_l."""
        if start is not None:
            raise VitrailError(
                "init_from=: the GANs of that run are in its clients' private files, not in its checkpoint; "
                "continue it with `vitrail resume`, or omit init_from="
            )
        usable = data is not None and self.task.classes and data.labels is not None and len(data)
        real = {"pixels": data.pixels, "labels": data.labels} if data is not None and usable else None
        return {"rounds": 0, self.clients_key: {}, "real": real, "classifier": None}

    def start_round(self, server: State, clients: Sequence[str], rng: Rng) -> tuple[State, Sequence[str]]:  # noqa: ARG002
        """Request all clients, or none in the classifier's rounds."""
        t = server["rounds"]
        return {**server, "rounds": t + 1}, clients if t < self.max_replies else ()

    def update_average(self, state: State, generator: Array) -> State:
        """Add G after one more step to its moving average, from which the server samples.

        It costs no communication. The first steps are averaged with less weight on the past, so that the
        initialization is soon forgotten.
        """
        if "average" not in state:
            return {"average": np.array(generator, np.float32), "averaged": 1}
        n = state["averaged"]
        decay = np.float32(min(self.ema_decay, n / (n + 10)))
        return {"average": decay * state["average"] + (1 - decay) * generator, "averaged": n + 1}

    def check_images(self, user: State) -> None:
        """Refuse a G whose images are not finite: the classifier is trained on images of all G."""
        G = from_vector(self.generator(), user["average"]).eval()
        labels = torch.tensor(user["labels"]) if self.task.classes else None
        z = torch.randn(max(8, len(user["labels"])), self.latent_dim, generator=Rng((0,)).child("check").torch())
        with torch.no_grad():
            images = G(z, None if labels is None else labels[torch.arange(len(z)) % len(labels)])
        if not bool(torch.isfinite(images).all()):
            raise Malformed("the client's G generates images that are not finite")

    def store_user(self, server: State, client: str, user: State) -> State:
        """Replace the server's state of one client; clients are sorted, so the order of replies does not matter."""
        return {**server, self.clients_key: dict(sorted({**server[self.clients_key], client: user}.items()))}

    # -- server: classifier and models ----------------------------------------------------------------------------

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """Algorithm 1, last line: C_l^(t+1) <- F(C_l^(t)) on synthetic and cloud data, in the final rounds."""
        done = server["rounds"] - 1 - self.max_replies
        if sums.clients or done < 0 or not server[self.clients_key]:
            return server
        real = None if server["real"] is None else Images(server["real"]["pixels"], server["real"]["labels"])
        draw = partial(
            draw_batch, self.task, self.mixture(server), real, self.classifier_batch_size, self.real_fraction
        )
        n = self.classifier_steps
        steps, total = range(done * n, (done + 1) * n), self.num_classifier_rounds * n
        return {**server, "classifier": train_classifier(server["classifier"], self.task, draw, steps, total, rng)}

    def _generators(self, server: State) -> tuple[list[nn.Module], list[list[int]]]:
        """Return every client's averaged G and its labels."""
        users = [server[self.clients_key][client] for client in sorted(server[self.clients_key])]
        return [from_vector(self.generator(), u["average"]).eval() for u in users], [u["labels"] for u in users]

    def mixture(self, server: State) -> Mixture:
        """Build one generator from all clients' G."""
        generators, labels = self._generators(server)
        return Mixture(generators, self.latent_dim, known_classes(labels, self.task.classes))

    def export_models(self, server: State, client: State | None = None) -> Mapping[str, Model]:
        """Return the mixture of all G, and C_l once it is trained; with a client's state, that client's G."""
        if client is not None:
            return gan.generator_model(client["now"]["generator"], self.task, self.width, self.latent_dim)
        generators, labels = self._generators(server)
        about = {"shape": list(self.task.shape), "classes": self.task.classes}
        tree = {**about, "width": self.width, "z": self.latent_dim, "labels": labels}
        models = {"generator": Model("mixture", {**tree, "parts": [G.state_dict() for G in generators]})}
        if server["classifier"] is not None:
            C = from_vector(build_classifier(self.task.shape[0], self.task.classes), server["classifier"]["network"])
            real = server["real"] if self.real_fraction else None
            unprotected = f"the {len(real['pixels'])} images that the server itself has" if real else ""
            models["classifier"] = Model("classifier", {**about, "weights": C.state_dict()}, unprotected)
        return models
