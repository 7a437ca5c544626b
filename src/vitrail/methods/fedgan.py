"""Federated Generative Adversarial Learning: FedAvg of a conditional GAN, with four synchronization strategies.

Fan, Liu; 2020. In every round some clients train a generator G and a discriminator D on their own images and upload
both; the server averages. `sync` is what clients take back: both ("d&g"), G ("g"), D ("d") or nothing ("none").

Differences from the paper (the setting in brackets restores the paper's version):

- The generator's loss is the non-saturating one (g_loss="minimax" is Eq. 3), on the fakes of the D step.
- Labels of fakes are uniform over the classes. Clients are weighted by their number of images (weighting="uniform").
- upload="synced" uploads only synchronized networks, as the halved cost that the paper states for Sync G implies.
- A network that is not synchronized stays on the client, with its optimizer. Privacy is added: fedgan_mechanisms.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.base import Broadcast, Model, PartSpec, Reply, ServerMessage, Sums, clip_weights
from vitrail.methods.fedgan_mechanisms import Steps, Trained, private_steps
from vitrail.methods.private import PrivateMethod
from vitrail.nets.dcgan import DcganDiscriminator, DcganGenerator, initialise
from vitrail.nets.flat import from_vector, to_vector, vector_size
from vitrail.privacy.mechanism import Mechanism
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, finite
from vitrail.wire.message import NO_BASE, digest

IMAGES_PER_WEIGHT = 100  # a weight of 1 is 100 images, so that weighted values fit float16 for few and for many images


@dataclass(frozen=True)
class FedGan(PrivateMethod):
    """The federated GAN: the settings, then Algorithm 1 from top to bottom."""

    sync: Annotated[
        Literal["d&g", "g", "d", "none"], Field(description="networks that clients take back (paper: d&g)")
    ] = "d&g"
    upload: Annotated[
        Literal["both", "synced"], Field(description="upload both networks, or the synchronized ones (paper: both)")
    ] = "both"
    width: Annotated[int, Field(ge=4, le=512, description="channels of the layer nearest to the image")] = 32
    latent_dim: Annotated[int, Field(ge=1, le=4096, description="dimensions of the noise z")] = 100
    local_epochs: Annotated[int, Field(ge=1, description="passes over a client's images in a round (paper: 1)")] = 1
    batch_size: Annotated[
        int,
        Field(ge=2, description="images per step; dp-sgd: fakes per step, and divisor of gradient sums (paper: 64)"),
    ] = 64
    lr: Annotated[float, Field(gt=0, le=1e3, description="Adam's learning rate (paper: 0.0002)")] = 2e-4
    beta1: Annotated[float, Field(ge=0, lt=1, description="Adam's β1; DCGAN uses 0.5")] = 0.5
    g_loss: Annotated[
        Literal["nonsaturating", "minimax"], Field(description="the generator's loss (paper: minimax)")
    ] = "nonsaturating"
    weighting: Annotated[
        Literal["examples", "uniform"],
        Field(description="weight of a client in the mean; with privacy always uniform (paper: uniform)"),
    ] = "examples"
    wire_dtype: Annotated[Literal["float32", "float16"], Field(description="number format of weights in messages")] = (
        "float32"
    )
    privacy: Annotated[
        Literal["none", "dp-sgd", "dp-fedavg"],
        Field(description="dp-sgd: clients noise D's gradients; dp-fedavg: the server noises the sum of updates"),
    ] = "none"
    d_norm: Annotated[
        Literal["auto", "batch", "group"], Field(description="normalization in D; auto: group with privacy, else batch")
    ] = "auto"
    max_grad_norm: Annotated[
        float,
        Field(ge=1e-6, le=1e4, description="privacy: largest norm of one image's gradient, or one client's update"),
    ] = 1.0
    sample_rate: Annotated[
        float, Field(gt=0, le=1, description="dp-sgd: probability of an image to be in a step; public")
    ] = 0.05
    dp_steps: Annotated[int, Field(ge=1, description="dp-sgd: steps of D per round")] = 20
    d_steps: Annotated[int, Field(ge=1, description="dp-sgd: steps of D per step of G")] = 4

    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 60}
    mechanisms: ClassVar[tuple[str, ...]] = ("dp-sgd", "dp-fedavg")

    @property
    def steps(self) -> Steps:
        """Lines 4 to 14 of Algorithm 1: the methods of this class, or a privacy mechanism's version of them."""
        return private_steps(self) or self

    # -- Algorithm 1: input -----------------------------------------------------------------------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:  # noqa: ARG002
        """Initialize (w_0^D, w_0^G); all clients start from them."""
        first = {name: to_vector(initialise(net, rng.child(name).torch())) for name, net in self.nets().items()}
        first = gan.init_or_warm_start(start, first)
        return {**first, "initial": {name: first[name] for name in first if name not in self.synced}}

    # -- Lines 15 to 20: clients take back the synchronized networks ------------------------------------------------

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """Send the synchronized networks, w_c ← w_0; a new client also gets the others, as initialized."""
        sent = {name: server[name] for name in self.synced} | (server["initial"] if full else {})
        base = NO_BASE if full or not server["initial"] else digest("networks")
        return Broadcast({name: (self.wire_dtype, vector) for name, vector in sent.items()}, base)

    # -- Lines 3 to 11: client k ------------------------------------------------------------------------------------

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Train (w_k^D, w_k^G) on D_k and upload them."""
        nets, optimizers, before = self.nets(), dict[str, torch.optim.Optimizer](), dict[str, NDArray[np.float32]]()
        for name, net in nets.items():
            own = name in state and name not in self.synced  # a network that is not synchronized is the client's own
            before[name] = np.asarray(state[name] if own else message.parts[name], np.float32)
            from_vector(net, before[name])
            net.to(self.task.device).train()
            optimizers[name] = torch.optim.Adam(net.parameters(), self.lr, (self.beta1, 0.999))
            if state:
                optimizers[name].load_state_dict(state["optimizers"][name])
        losses = self.steps.train(nets, optimizers, data, rng)

        vectors = {name: to_vector(net) for name, net in nets.items()}
        after: State = {**vectors, "optimizers": {name: o.state_dict() for name, o in optimizers.items()}}
        if not finite(after):  # training diverged: keep the old state, and send the networks it started from
            after, vectors = state, before
        parts = self.steps.client_parts(Trained(nets, vectors, message.parts, len(data), losses))
        return after, Reply(parts, state_id=digest("networks") if after else NO_BASE)

    def train(self, nets: gan.Nets, optimizers: gan.Optimizers, data: Images, rng: Rng) -> NDArray[Any]:
        """Train both networks for local_epochs; return their mean losses."""
        G, D = nets["generator"], nets["discriminator"]
        draw = rng.child("training").torch()
        losses: list[Tensor] = []
        for x, y in gan.epochs(data, self.local_epochs, self.batch_size, self.task, rng):  # line 5
            z, y_fake = gan.sample_latent(len(x), self.latent_dim, self.task, draw)  # lines 6 and 10
            fake = G(z, y_fake)
            loss_d = gan.d_loss(D, (x, y), (fake, y_fake))
            gan.step(optimizers["discriminator"], loss_d)  # line 7, Eq. 2
            loss_g = gan.g_loss(D(fake, y_fake), self.g_loss)
            gan.step(optimizers["generator"], loss_g)  # line 11, Eq. 3
            losses.append(torch.stack([loss_g.detach(), loss_d.detach()]))
        return torch.stack(losses).mean(0).cpu().numpy()

    def client_parts(self, trained: Trained) -> dict[str, NDArray[Any]]:
        """Return the reply: the networks times the client's weight, the weight, and the losses."""
        weight = np.float32(trained.images / IMAGES_PER_WEIGHT if self.weighting == "examples" else 1.0)
        parts = {name: clip_weights(trained.vectors[name] * weight) for name in self.uploaded}
        losses = {"metric.loss_g": trained.losses[:1], "metric.loss_d": trained.losses[1:]}
        return {**parts, "weight": np.array([weight]), **losses}

    # -- Lines 12 to 14: the server averages ------------------------------------------------------------------------

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """Update the central model by averaging client weights."""
        return {**server, **self.steps.average(server, sums, rng)}

    def average(self, server: State, sums: Sums, rng: Rng) -> State:  # noqa: ARG002
        """Return w_0 ← Σ_k n_k w_k / Σ_k n_k for D and G; zero total weight gives NaN, and the round is discarded."""
        total, weight = sums.values, sums.values["weight"][0]
        with np.errstate(divide="ignore", invalid="ignore"):
            return {n: clip_weights((total[n] / weight).astype(np.float32)) for n in self.uploaded}

    # -- Line 21 ----------------------------------------------------------------------------------------------------

    def export_models(self, server: State, client: State | None = None) -> Mapping[str, Model]:
        """Return the central generator, or a client's own."""
        return gan.generator_model((client or server)["generator"], self.task, self.width, self.latent_dim)

    # -- What both sides know ---------------------------------------------------------------------------------------

    def nets(self) -> gan.Nets:
        """Return G and D, not initialized."""
        shape, classes = self.task.shape, self.task.classes
        auto: Literal["batch", "group"] = "batch" if self.privacy == "none" else "group"
        D = DcganDiscriminator(shape, classes, self.width, auto if self.d_norm == "auto" else self.d_norm)
        return {"generator": DcganGenerator(shape, classes, self.width, self.latent_dim), "discriminator": D}

    @property
    def synced(self) -> tuple[str, ...]:
        """The networks that clients take back: the paper's Sync_FLAG."""
        both = ("generator", "discriminator")
        return {"d&g": both, "g": both[:1], "d": both[1:], "none": ()}[self.sync]

    @property
    def uploaded(self) -> tuple[str, ...]:
        """The networks that clients upload; always the generator, which the run exports."""
        if self.upload == "both":
            return ("generator", "discriminator")
        return tuple({"generator": 0, **dict.fromkeys(self.synced)})

    def reply_spec(self) -> Mapping[str, PartSpec]:
        self.mechanism  # noqa: B018  calibrates the noise, and refuses settings that cannot be private
        with torch.device("meta"):
            return self.steps.part_specs(self.nets())

    def part_specs(self, nets: gan.Nets) -> Mapping[str, PartSpec]:
        """Return the parts that `client_parts` sends."""
        one = PartSpec("sum", "float32", 1)
        return {
            **{n: PartSpec("sum", self.wire_dtype, vector_size(nets[n]), over="weight") for n in self.uploaded},
            **{"weight": PartSpec("sum", "float32", 1, least=0), "metric.loss_g": one, "metric.loss_d": one},
        }

    def base_mechanism(self) -> Mechanism | None:
        steps = private_steps(self)
        return steps.mechanism() if steps else None
