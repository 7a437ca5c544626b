"""PRISM: Privacy-Preserving Improved Stochastic Masking for Federated Generative Models.

Seo, Han, Yoo; ICLR 2025. Here in its plain form (PRISM-0): every party builds the same frozen random network W from
one seed; clients learn scores s for a mask over it by matching feature moments (Eq. 1), and upload one binary mask;
the server averages masks into θ.

What differs from the paper, and why (docs/results.md has the figures): real moments are computed once per client, as
they never change; the fakes' moments are smoothed by an exponential average; with labels, moments are matched per
class; uploaded masks are drawn jointly (sampling="independent" is the paper's), because K independent draws carry θ
away at every round; scores start wider and move faster, and the learning rate falls along a cosine (score_std=1, lr=0.1
and schedule="constant" are the paper's); the stored mask is θ > 1/2 (final_mask="sample" is the paper's).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from vitrail.cache import remember
from vitrail.data.pictures import Pictures
from vitrail.errors import VitrailError
from vitrail.methods.base import Declared, Incoming, Model, Outgoing, Reply, Simple, Sums, Task
from vitrail.nets import generators
from vitrail.nets.features import Features, load_features
from vitrail.nets.masked import Masked, sample_mask
from vitrail.nets.moments import Moments, class_moments, mix, moment_loss
from vitrail.nets.pretrained import weights_digest
from vitrail.rng import Rng
from vitrail.state import State
from vitrail.wire.codecs import Array, bits_for
from vitrail.wire.entropy import decode, encode
from vitrail.wire.message import NO_BASE, digest

LEVELS = 32


@dataclass(frozen=True)
class Prism(Simple):
    """PRISM's settings."""

    task: Task
    generator: Annotated[Literal["small", "resnet"], Field(description="network: small, or the paper's resnet")] = (
        "small"
    )
    features: Annotated[str, Field(description="feature network ψ: auto, vitrail-fashion, vitrail-cifar, vgg19")] = (
        "auto"
    )
    local_steps: Annotated[int, Field(ge=1, description="iterations per client and round (paper: 100)")] = 20
    batch: Annotated[int, Field(ge=2, description="pictures generated per iteration (paper: 64)")] = 50
    lr: Annotated[float, Field(gt=0, description="Adam's learning rate on the scores (paper: 0.1)")] = 0.3
    schedule: Annotated[Literal["cosine", "constant"], Field(description="the learning rate over the rounds")] = (
        "cosine"
    )
    smoothing: Annotated[float, Field(gt=0, le=1, description="weight of a batch in the fakes' moments; 1: none")] = 0.1
    score_std: Annotated[float, Field(gt=0, description="the first scores are N(0, score_std²) (paper: 1)")] = 3.0
    clamp: Annotated[float, Field(gt=0, lt=0.5, description="θ is kept within [clamp, 1 - clamp]")] = 0.02
    gradient: Annotated[
        Literal["identity", "theta"], Field(description="straight-through gradient: plain, or times θ")
    ] = "identity"
    sampling: Annotated[
        Literal["stratified", "independent"],
        Field(description="how the K uploaded masks are drawn: jointly, so that their mean strays less, or each alone"),
    ] = "stratified"
    coding: Annotated[
        Literal["entropy", "packed"],
        Field(description="how masks and counts travel: coded under the last counts, or as packed bits"),
    ] = "entropy"
    final_mask: Annotated[
        Literal["mode", "sample"],
        Field(description="the stored mask: θ > 1/2, or drawn from θ as in the paper"),
    ] = "mode"

    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 12}

    def net(self, seed: int) -> Masked:
        """The frozen network both sides build from the seed."""
        g = generators.build(self.generator, self.task.shape, self.task.classes)
        return Masked(g, seed).to(self.task.device)

    @property
    def size(self) -> int:
        """Elements of the mask."""
        with torch.device("meta"):
            g = generators.build(self.generator, self.task.shape, self.task.classes)
        return sum(p.numel() for p in g.parameters())

    def declares(self) -> Mapping[str, Declared]:
        coded = self.coding == "entropy"
        mask = Declared("sum", "bytes", self.size, limit=1.0, unpack=self.decode_mask) if coded else (
            Declared("sum", "u1", self.size, limit=1.0)
        )  # fmt: skip
        return {
            "mask": mask,
            "metric.loss": Declared("sum", "float32", 1, limit=2.0**40),
        }

    # -- server ---------------------------------------------------------------------------------------------------

    def server_init(self, rng: Rng, data: Pictures | None = None, start: State | None = None) -> State:  # noqa: ARG002
        """Only a seed: W and the first scores N(0, score_std²) follow from it."""
        if start is None:
            return {"seed": rng.child("network").seed(), "counts": None, "clients": 0, "told": {}}
        if start["counts"] is None or start["counts"].shape != (self.size,):
            raise VitrailError(
                "from= names a run with another generator, picture size or labels; start from one like this"
            )
        return {**start, "told": {}}

    def open_round(self, server: State, clients: Sequence[str], rng: Rng) -> tuple[State, Sequence[str]]:  # noqa: ARG002
        """Everyone asked takes part; who they are gives each a stratum. θ_t is coded once for all of them."""
        opened = {**server, "who": list(clients)}
        if server["counts"] is not None and self.coding == "entropy":
            counts, alphabet = server["counts"], server["clients"] + 1
            opened["full"] = encode(counts, np.zeros(self.size, np.int32), alphabet)
            if server.get("before") is not None:  # for those who hold what the last round began with
                opened["change"] = encode(counts, levels(server["before"], server["before_clients"]), alphabet)
        return opened, clients

    def broadcast(self, server: State, client: str, full: bool) -> Outgoing:
        """θ_t as exact counts of masks, coded under θ_{t-1} for a client that holds it; the same for all of those."""
        parts = {"seed": ("seed", np.array([server["seed"]], np.uint64))}
        base, numbers = NO_BASE, {}
        if self.sampling == "stratified":
            parts["stratum"] = (
                "int32",
                np.array([server["who"].index(client), len(server["who"])], np.int32),
            )
        if server["counts"] is not None:
            parts["clients"] = ("int32", np.array([server["clients"]], np.int32))
            if self.coding == "packed":
                parts["counts"] = (bits_for(server["clients"]), server["counts"])
            elif not full and "change" in server and server["told"].get(client) == server["rounds"] - 1:
                parts["change"], base = ("bytes", server["change"]), digest(server["before"].tobytes())
            else:
                parts["full"] = ("bytes", server["full"])
            numbers = {"change": self.size, "full": self.size}
        return Outgoing(parts, base, numbers)

    def close_round(self, server: State, sums: Sums, rng: Rng) -> State:  # noqa: ARG002
        """θ_{t+1} = mean of the masks, kept as counts: integers are the same on every machine."""
        kept = {k: v for k, v in server.items() if k not in ("full", "change", "who")}
        now = server.get("rounds", 0)
        told = {**server["told"], **dict.fromkeys(server["who"], now)}  # who may hold what this round began with
        after = {"counts": sums.values["mask"].astype(np.int32), "clients": sums.clients, "rounds": now + 1}
        before = {"before": server["counts"], "before_clients": server["clients"]}
        return {**kept, **after, **(before if self.coding == "entropy" else {}), "told": told}

    def products(self, server: State, client: State | None = None) -> Mapping[str, Model]:  # noqa: ARG002
        """The supermask M* over W, a seed and one bit per weight; and θ, from which papers draw a mask a batch."""
        theta = torch.sigmoid(self.scores(server))
        if self.final_mask == "mode":
            mask = theta > 0.5
        else:
            generator = Rng((server["seed"],)).child("final mask").torch()
            mask = torch.rand(theta.shape, generator=generator) < theta
        about = {"generator": self.generator, "shape": list(self.task.shape), "classes": self.task.classes}
        about["seed"] = server["seed"]
        products = {"generator": Model("masked", {**about, "mask": np.packbits(mask.numpy())})}
        if server["counts"] is not None:
            products["ensemble"] = Model("ensemble", {**about, "theta": theta.half()})
        return products

    # -- both -----------------------------------------------------------------------------------------------------

    def scores(self, told: Mapping[str, Any]) -> Tensor:
        """s = logit(clamp(θ)) from seed and counts, to the same bits on both sides."""
        if told.get("counts") is None:
            draw = Rng((_first(told["seed"]),)).child("scores").torch()
            return torch.randn(self.size, generator=draw) * self.score_std
        theta = torch.from_numpy(np.asarray(told["counts"], np.float32)) / _first(told["clients"])
        return torch.logit(theta.clamp(self.clamp, 1 - self.clamp))

    def decode_mask(self, server: State, coded: Array) -> Array:
        """A client's mask, coded under the counts that it was told."""
        return decode(coded, self.known_levels(server), 2)

    def known_levels(self, told: Mapping[str, Any]) -> Array:
        """What both sides know of every element: its count of masks in the last round; before the first, nothing."""
        if told.get("counts") is None:
            return np.zeros(self.size, np.int32)
        return levels(told["counts"], _first(told["clients"]))

    def read(self, state: State, parts: Mapping[str, Any]) -> dict[str, Any]:
        """What the server told, with its counts decoded."""
        told = dict(parts)
        if "clients" in told and self.coding == "entropy":
            alphabet = _first(told["clients"]) + 1
            if "change" in told:
                held = levels(state["counts"], state["clients"])
                told["counts"] = decode(told.pop("change"), held, alphabet)
            else:
                told["counts"] = decode(told.pop("full"), np.zeros(self.size, np.int32), alphabet)
        return told

    # -- client ---------------------------------------------------------------------------------------------------

    def client_round(self, state: State, message: Incoming, data: Pictures, rng: Rng) -> tuple[State, Reply]:
        """Algorithm 1, client side."""
        told = self.read(state, message.parts)
        device = self.task.device
        psi, psi_digest = public_features(self.features, device)
        net = self.net(_first(told["seed"]))
        real = self.real_moments(psi, psi_digest, data)
        present = torch.nonzero(real.share, as_tuple=True)[0].to(device)

        s = self.scores(told).to(device).requires_grad_()
        optimizer = torch.optim.Adam([s], lr=self.rate(message.round), betas=(0.5, 0.999))
        if "optimizer" in state:  # Adam's averages belong to the client and outlive the round
            optimizer.state[s] = {k: v.clone() for k, v in state["optimizer"].items()}
        draw, every = rng.child("training").torch(), torch.arange(self.batch, device=device)
        smooth: Moments | None = None
        losses = []
        for i in range(self.local_steps):
            z = torch.randn(self.batch, net.z, generator=draw).to(device)
            y = present[(i * self.batch + every) % len(present)]  # all its classes in turn
            mask = sample_mask(s, draw, self.gradient == "theta")  # M ~ Bern(θ)
            fake = class_moments(psi(net(mask, z, y if self.task.classes else None)), y, real.share.numel())
            if smooth is not None:  # a plain average of the first batches, an exponential one after
                fake = mix(smooth, fake, max(self.smoothing, 1 / (i + 1)))
            loss = moment_loss(real, fake)  # Eq. 1
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            smooth = fake.detach()
            losses.append(loss.detach())

        upload = (self.uniform(message, rng) < torch.sigmoid(s.detach().cpu())).numpy()  # M ~ Bern(θ), it travels
        sent: Array = encode(upload, self.known_levels(told), 2) if self.coding == "entropy" else upload
        parts = {"mask": sent, "metric.loss": np.array([torch.stack(losses).mean().item()], np.float32)}
        kept: State = {"optimizer": dict(optimizer.state[s])}
        if self.coding == "packed" or "counts" not in told:
            return kept, Reply(parts)
        counts = np.asarray(told["counts"], np.int32)
        held = {"counts": counts, "clients": _first(told["clients"])}
        return {**kept, **held}, Reply(parts, holds=digest(counts.tobytes()))

    def uniform(self, message: Incoming, rng: Rng) -> Tensor:
        """Uniform numbers to compare θ with: a client's own, or one draw for all clients shifted by k/K for the k-th.

        Either way each mask is Bern(θ). With independent draws the mean of K masks has variance θ(1-θ)/K at every
        round, which carries the scores away from where training left them; shifted draws meet it to within 1/K.
        """
        if self.sampling == "independent":
            return torch.rand(self.size, generator=rng.child("upload").torch())
        k, of = map(int, message.parts["stratum"])
        common = Rng((_first(message.parts["seed"]),)).child("strata", message.round).torch()
        return (torch.rand(self.size, generator=common) + k / of) % 1

    def rate(self, t: int) -> float:
        """The learning rate of round t."""
        if self.schedule == "constant":
            return self.lr
        return self.lr * (0.5 + 0.5 * math.cos(math.pi * t / self.task.rounds))

    def real_moments(self, psi: Features, psi_digest: str, data: Pictures) -> Moments:
        """Mean and variance of ψ over this client's pictures, per class; once per content, then from the cache."""
        classes = max(self.task.classes, 1)
        labels = data.labels if self.task.classes and data.labels is not None else np.zeros(len(data), np.int64)
        key = f"{psi_digest} {psi.layers} {classes} {data.digest()}"

        def compute() -> State:
            return Moments.of_pictures(psi, data.pixels, labels, classes, self.task.device).tree()

        if len(data) <= self.batch:  # quicker computed than read
            return Moments.from_tree(compute(), self.task.device)
        return Moments.from_tree(remember("moments", key, compute), self.task.device)


@cache
def public_features(name: str, device: str) -> tuple[Features, str]:
    """ψ, public, frozen and used in training only, and a name for its weights; read once a process."""
    psi = load_features(name, device=device)
    return psi, weights_digest(psi)


def levels(counts: Array, clients: int) -> Array:
    """Counts of masks as levels of a coder: few enough that a table of symbols by level stays small.

    >>> levels(np.array([0, 3, 10]), 10).tolist(), levels(np.array([0, 500, 1000]), 1000).tolist()
    ([0, 3, 10], [0, 15, 31])
    """
    return counts if clients < LEVELS else counts.astype(np.int64) * LEVELS // (clients + 1)


def _first(value: Any) -> int:
    """A whole number, alone or in an array of one."""
    return int(np.ravel(value)[0])
