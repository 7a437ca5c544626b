"""What psfedgan and fullgan share: a conditional GAN for each client, the mixture of all G on the server, a classifier.

How G gets to the server is each method's own. The classifier is trained in the last rounds, on the mixture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.base import Model, PartSpec, Sums
from vitrail.methods.psfedgan import classifier
from vitrail.methods.psfedgan.local_gan_settings import LocalGanSettings
from vitrail.methods.psfedgan.local_training import LocalTrainer, labels_of
from vitrail.nets.classifier import classifier as network
from vitrail.nets.dcgan import DcganGenerator
from vitrail.nets.discriminators import discriminator
from vitrail.nets.flat import from_vector
from vitrail.nets.mixture import Mixture, knows
from vitrail.privacy import dpsgd
from vitrail.privacy.mechanism import Mechanism
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire.codecs import Array
from vitrail.wire.message import LARGEST


@dataclass(frozen=True)
class LocalGan(LocalGanSettings):
    """The networks of every client, and what the server does with generators that it has."""

    users: ClassVar[str]  # where the server's state has what it knows of each client: a generator, labels
    leaves: ClassVar[str]  # what leaves a client under dp-sgd

    def generator(self) -> DcganGenerator:
        """G, not yet initialised."""
        return DcganGenerator(self.task.shape, self.task.classes, self.width, self.latent_dim)

    def discriminator(self, name: str) -> nn.Module:
        """D_u as a message names it."""
        return discriminator(name, self.task.shape, self.task.classes)

    @property
    def architecture(self) -> str:
        """The name of this party's own D_u."""
        return f"{self.d_architecture}:{self.d_width}"

    def adam(self, net: nn.Module, state: State | None, lr: float | None = None) -> torch.optim.Adam:
        """A network's Adam, at G's rate or another, its averages new or as they were."""
        return gan.adam(net, lr or self.lr, (self.beta1, 0.999), state)

    def learner(self, kept: State) -> LocalTrainer:
        """G and its Adam as they are kept."""
        return LocalTrainer(self.generator().to(self.task.device), self.adam, kept)

    def noise(self, seed: int, t: int, labels: Sequence[int], j: int = 0) -> gan.Batch:
        """z_t and l_t of a seed; l_t is one of these labels. j > 0: of D's further iterations."""
        draw = Rng((seed,)).child("step", t, j).torch()
        z = torch.randn(self.batch_size, self.latent_dim, generator=draw).to(self.task.device)
        if not self.task.classes:
            return z, None
        some = torch.tensor(labels)[torch.randint(len(labels), (self.batch_size,), generator=draw)]
        return z, some.to(self.task.device)

    # -- what leaves a client -------------------------------------------------------------------------------------

    @property
    def says_labels(self) -> bool:
        """Whether a client says which labels it has."""
        said = ("declared", "auto", "public") if self.privacy == "none" else ("public",)
        return bool(self.task.classes) and self.label_sets in said

    def base_mechanism(self) -> Mechanism | None:
        if self.privacy == "none":
            return None
        if self.label_sets == "declared":
            raise VitrailError(
                "privacy=dp-sgd with label_sets=declared: the set of a client's labels would leave without noise; "
                "use label_sets=all, or, if anybody may know that set, label_sets=public"
            )
        with torch.device("meta"):
            dpsgd.check(self.discriminator(self.architecture))
        noised = dpsgd.mechanism(
            self.max_grad_norm, self.sample_rate, self.steps_per_message * self.d_steps, self.leaves
        )
        if not self.says_labels:
            return noised
        public = "which labels a client has pictures of"
        return replace(noised, public=public, leaves=f"{noised.leaves}; as it is, {public}")

    def fits(self, numbers: int) -> int:
        """How many bytes so many float32 take, if one message can carry them."""
        if 4 * numbers > LARGEST - 2**20:
            raise VitrailError(
                f"steps_per_message={self.steps_per_message}: {4 * numbers:,} bytes in one message, more than "
                f"{LARGEST:,}: use fewer steps, and more rounds, or narrower networks"
            )
        return 4 * numbers

    def declares_besides(self) -> dict[str, PartSpec]:
        """Labels and losses, where they may be said."""
        parts = {"labels": PartSpec("each", "u1", self.task.classes)} if self.says_labels else {}
        one = PartSpec("sum", "float32", 1)
        return parts if self.mechanism is not None else {**parts, "metric.loss_g": one, "metric.loss_d": one}

    def says_besides(self, data: Images, losses: Array) -> dict[str, Any]:
        """The parts of a reply that `declares_besides` names."""
        parts: dict[str, Any] = {}
        if self.says_labels:
            parts["labels"] = np.isin(np.arange(self.task.classes), labels_of(self, data))
        if self.mechanism is None:
            parts |= {"metric.loss_g": losses[:1], "metric.loss_d": losses[1:]}
        return parts

    def labels_said(self, parts: Mapping[str, Array]) -> list[int]:
        """The labels that a client's G knows, as far as it says."""
        labels = [int(y) for y in np.flatnonzero(parts["labels"])] if self.says_labels else range(self.task.classes)
        if self.task.classes and not labels:
            raise Malformed("it says that it has no label at all")
        return list(labels)

    # -- server ---------------------------------------------------------------------------------------------------

    @property
    def alone(self) -> int:
        """How many of the last rounds are the server's, for its classifier."""
        return min(self.classifier_rounds, self.task.rounds // 2) if self.task.classes else 0

    @property
    def max_replies(self) -> int:
        """Clients answer before the classifier is trained."""
        return self.task.rounds - self.alone

    @property
    def num_async_rounds(self) -> int:
        """Clients do not depend on each other: what the server has of one follows from its own replies."""
        return self.max_replies

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:  # noqa: ARG002
        """No generator yet, and the real pictures for C."""
        if start is not None:
            raise VitrailError(
                "init_from=: each client's GAN is its own, and stays with its client in that run's folder; "
                "`vitrail resume` goes on there, or leave init_from= out"
            )
        held = data if data is not None and self.task.classes and data.labels is not None and len(data) else None
        real = None if held is None else {"pixels": held.pixels, "labels": held.labels}
        return {"rounds": 0, self.users: {}, "real": real, "classifier": None}

    def start_round(self, server: State, clients: Sequence[str], rng: Rng) -> tuple[State, Sequence[str]]:  # noqa: ARG002
        """Clients first; the last rounds are the server's."""
        t = server["rounds"]
        return {**server, "rounds": t + 1}, clients if t < self.max_replies else ()

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """In the last rounds, train C; everything else was done as replies came."""
        done = server["rounds"] - 1 - self.max_replies
        if sums.clients or done < 0 or not server[self.users]:
            return server
        real = None if server["real"] is None else Images(server["real"]["pixels"], server["real"]["labels"])
        lessons = classifier.ClassifierBatches(
            self.task, self.mixture(server), real, self.classifier_batch_size, self.real_fraction
        )
        n = self.classifier_steps
        steps = range(done * n, (done + 1) * n)
        return {**server, "classifier": classifier.train(server["classifier"], lessons, steps, self.alone * n, rng)}

    def averaged(self, before: State | None, generators: Iterable[Array]) -> State:
        """The running mean of a client's G over its steps, with some more: its pictures are better than the last G's.

        It is the server's alone and costs no byte; at first a plain mean of few, so that the start is soon forgotten.
        """
        mean, n = (before["average"], before["averaged"]) if before else (np.zeros(0, np.float32), 0)
        for vector in generators:
            keep = np.float32(min(self.ema_decay, n / (n + 10)))
            mean = keep * mean + (1 - keep) * vector if n else np.array(vector, np.float32)
            n += 1
        return {"average": mean, "averaged": n}

    def check_images(self, user: State) -> None:
        """Refuse a client's G whose images are not finite: the classifier is trained on images of all G."""
        G = from_vector(self.generator(), user["average"]).eval()
        labels = torch.tensor(user["labels"]) if self.task.classes else None
        z = torch.randn(max(8, len(user["labels"])), self.latent_dim, generator=Rng((0,)).child("check").torch())
        with torch.no_grad():
            made = G(z, None if labels is None else labels[torch.arange(len(z)) % len(labels)])
        if not bool(torch.isfinite(made).all()):
            raise Malformed("its G makes images that are not finite")

    def _parts(self, server: State) -> tuple[list[nn.Module], list[list[int]]]:
        """Every client's G, and the labels that each knows."""
        found = [server[self.users][client] for client in sorted(server[self.users])]
        return [from_vector(self.generator(), one["average"]).eval() for one in found], [u["labels"] for u in found]

    def mixture(self, server: State) -> Mixture:
        """All clients' G as one generator."""
        parts, labels = self._parts(server)
        return Mixture(parts, self.latent_dim, knows(labels, self.task.classes))

    def export_models(self, server: State, client: State | None = None) -> Mapping[str, Model]:
        """The mixture over all clients' G, and the classifier once there is one; or a client's own G."""
        if client is not None:
            return gan.product(client["now"]["generator"], self.task, self.width, self.latent_dim)
        parts, labels = self._parts(server)
        about = {"shape": list(self.task.shape), "classes": self.task.classes}
        mixed = {**about, "width": self.width, "z": self.latent_dim, "labels": labels}
        made = {"generator": Model("mixture", {**mixed, "parts": [G.state_dict() for G in parts]})}
        if server["classifier"] is not None:
            C = from_vector(network(self.task.shape[0], self.task.classes), server["classifier"]["network"])
            real = server["real"] if self.real_fraction else None
            seen = f"the {len(real['pixels'])} images that the server itself has" if real else ""
            made["classifier"] = Model("classifier", {**about, "weights": C.state_dict()}, seen)
        return made
