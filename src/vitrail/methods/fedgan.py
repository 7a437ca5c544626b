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
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.base import Broadcast, Model, PartSpec, Reply, ServerMessage, Sums, clip_weights, setting
from vitrail.methods.fedgan_mechanisms import MECHANISMS, DpFedAvg, DpSgd
from vitrail.nets.dcgan import DcganDiscriminator, DcganGenerator, initialise
from vitrail.nets.flat import from_vector, on_meta, to_vector, vector_size
from vitrail.privacy.mechanism import Mechanism
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, finite
from vitrail.wire.codecs import Array
from vitrail.wire.message import NO_BASE, digest

NETWORKS = ("generator", "discriminator")
Vectors = dict[str, NDArray[np.float32]]
IMAGES_PER_WEIGHT = 100  # a weight of 1 is 100 images, so that weighted values fit float16 for few and for many images


@dataclass(frozen=True)
class FedGan(gan.PrivateGan):
    """The federated GAN: the settings, then Algorithm 1 from top to bottom; without privacy, `steps` is `self`."""

    sync: Literal["d&g", "g", "d", "none"] = setting("d&g", "networks that clients take back (paper: d&g)")
    upload: Literal["both", "synced"] = setting("both", "upload both networks, or the synchronized ones (paper: both)")
    width: int = setting(32, "channels of the layer nearest to the image (paper: no value)", ge=4, le=512)
    latent_dim: int = setting(100, "dimensions of the noise z (paper: no value)", ge=1, le=4096)
    local_epochs: int = setting(1, "passes over a client's images in a round (paper: 1)", ge=1)
    batch_size: int = setting(
        64, "images per step; dp-sgd: fakes per step, and divisor of gradient sums (paper: 64)", ge=2
    )
    lr: float = setting(2e-4, "Adam's learning rate (paper: 0.0002)", gt=0, le=1e3)
    beta1: float = setting(0.5, "Adam's β1; DCGAN uses 0.5 (paper: no value)", ge=0, lt=1)
    g_loss: Literal["nonsaturating", "minimax"] = setting("nonsaturating", "the generator's loss (paper: minimax)")
    weighting: Literal["examples", "uniform"] = setting(
        "examples", "weight of a client in the mean; with privacy always uniform (paper: uniform)"
    )
    wire_dtype: Literal["float32", "float16"] = setting("float32", "number format of weights in messages (ours)")
    privacy: Literal["none", "dp-sgd", "dp-fedavg"] = setting(
        "none", "dp-sgd: clients noise D's gradients; dp-fedavg: the server noises the sum of updates (paper: none)"
    )
    d_norm: Literal["auto", "batch", "group"] = setting(
        "auto", "normalization in D; auto: group with privacy, else batch (paper: batch)"
    )
    max_grad_norm: float = setting(
        1.0, "privacy: largest norm of one image's gradient, or one client's update (ours)", ge=1e-6, le=1e4
    )
    sample_rate: float = setting(0.05, "dp-sgd: probability of an image to be in a step; public (ours)", gt=0, le=1)
    dp_steps: int = setting(20, "dp-sgd: steps of D per round (ours)", ge=1)
    d_steps: int = setting(4, "dp-sgd: steps of D per step of G (ours)", ge=1)

    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 60}
    mechanisms: ClassVar[tuple[str, ...]] = tuple(MECHANISMS)
    auto_norm: ClassVar[Literal["batch", "group"]] = "batch"

    # -- Algorithm 1, input: the global GAN (w_0^D, w_0^G) ----------------------------------------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:  # noqa: ARG002
        """Initialize (w_0^D, w_0^G); all clients start from them."""
        w_0 = {name: to_vector(initialise(net, rng.child(name).torch())) for name, net in self.nets().items()}
        w_0 = gan.init_or_warm_start(start, w_0)
        return {**w_0, "initial": {name: w_0[name] for name in w_0 if name not in self.synced}}

    # (lines 1 and 2: the engine runs T = `rounds` rounds and selects K = `clients_per_round` clients)

    # -- Lines 3 to 11: each client k in parallel -------------------------------------------------------------------

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Train (w_k^D, w_k^G) on D_k and upload them."""
        before = self.received(state, message)  # (w_k^D, w_k^G) after lines 15 to 20 of the last round
        nets, optimizers = self.load(before, state)
        losses = self.steps.train(nets, optimizers, data, rng)  # lines 4 to 11
        w_k = {name: to_vector(net) for name, net in nets.items()}
        after: State = {**w_k, "optimizers": {name: o.state_dict() for name, o in optimizers.items()}}
        if not finite(after):  # training diverged: keep the old state, and send the networks it started from
            after, w_k = state, before
        parts = self.steps.reply(w_k, len(data), losses, nets, before)
        return after, Reply(parts, state_id=digest("networks") if after else NO_BASE)

    def train(self, nets: gan.Nets, optimizers: gan.Optimizers, data: Images, rng: Rng) -> NDArray[Any]:
        """Lines 4 to 11 for local_epochs; return the mean losses."""
        G, D = nets["generator"], nets["discriminator"]
        draw = rng.child("training").torch()
        losses: list[Tensor] = []
        # line 4: update w_k^D
        for x, y in gan.epochs(data, self.local_epochs, self.batch_size, self.task, rng):  # line 5: x, y
            z, y_fake = gan.sample_latent(len(x), self.latent_dim, self.task, draw)  # line 6: z, y'
            fake = G(z, y_fake)
            loss_d = gan.d_loss(D, (x, y), (fake, y_fake))
            gan.step(optimizers["discriminator"], loss_d)  # line 7: Eq. 2
            # line 9: update w_k^G (line 10: no new z, y'; those of line 6 are used again)
            loss_g = gan.g_loss(D(fake, y_fake), self.g_loss)
            gan.step(optimizers["generator"], loss_g)  # line 11: Eq. 3
            losses.append(torch.stack([loss_g.detach(), loss_d.detach()]))
        return torch.stack(losses).mean(0).cpu().numpy()

    def reply(self, w_k: Vectors, n_k: int, losses: NDArray[Any], *_: Any) -> dict[str, Array]:
        """Return the networks times the client's weight, the weight, and the losses."""
        weight = np.float32(n_k / IMAGES_PER_WEIGHT if self.weighting == "examples" else 1.0)
        parts = {name: clip_weights(w_k[name] * weight) for name in self.uploaded}
        return {**parts, "weight": np.array([weight]), "metric.loss_g": losses[:1], "metric.loss_d": losses[1:]}

    # -- Lines 12 to 14: the server averages ------------------------------------------------------------------------

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """Replace (w_0^D, w_0^G) by the clients' average."""
        return {**server, **self.steps.average(sums, server, rng)}

    def average(self, sums: Sums, *_: Any) -> State:
        """w_0 ← Σ_k n_k w_k / Σ_k n_k for D and G; zero total weight gives NaN, and the round is discarded."""
        w_0 = {name: gan.weighted_mean(sums, name).astype(np.float32) for name in self.uploaded}  # lines 13 and 14
        return {name: clip_weights(vector) for name, vector in w_0.items()}

    # -- Lines 15 to 20: clients take back the synchronized networks, at their next request -------------------------

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """Send w_0 of the synchronized networks; a new client also gets the others, as initialized."""
        sent = {name: server[name] for name in self.synced} | (server["initial"] if full else {})
        base = NO_BASE if full or not server["initial"] else digest("networks")
        return Broadcast({name: (self.wire_dtype, vector) for name, vector in sent.items()}, base)

    def received(self, state: State, message: ServerMessage) -> Vectors:
        """Return w_k: w_k ← w_0 where synchronized (lines 17 and 20); any other network is the client's own."""
        own = {name: state for name in state if name in NETWORKS and name not in self.synced}
        return {name: np.asarray(own.get(name, message.parts)[name], np.float32) for name in NETWORKS}

    # -- Line 21: return (w_0^D, w_0^G) -----------------------------------------------------------------------------

    def export_models(self, server: State, client: State | None = None) -> Mapping[str, Model]:
        """Return the central generator, or a client's own."""
        return gan.generator_model((client or server)["generator"], self.task, self.width, self.latent_dim)

    # -- Loading ----------------------------------------------------------------------------------------------------

    def load(self, w_k: Vectors, state: State) -> tuple[gan.Nets, gan.Optimizers]:
        """Return G and D with these weights, and their optimizers with the client's stored state."""
        nets, optimizers = self.nets(), dict[str, torch.optim.Optimizer]()
        for name, net in nets.items():
            from_vector(net, w_k[name]).to(self.task.device).train()
            optimizers[name] = torch.optim.Adam(net.parameters(), self.lr, (self.beta1, 0.999))
            if state:
                gan.load_optimizer_state(optimizers[name], state["optimizers"][name]["state"])
        return nets, optimizers

    # -- What both sides know ---------------------------------------------------------------------------------------

    def nets(self) -> gan.Nets:
        """Return G and D, not initialized."""
        shape, classes = self.task.shape, self.task.classes
        norm = self.steps.auto_norm if self.d_norm == "auto" else self.d_norm
        D = DcganDiscriminator(shape, classes, self.width, norm)
        return {"generator": DcganGenerator(shape, classes, self.width, self.latent_dim), "discriminator": D}

    def sent_discriminator(self) -> FedGan | None:
        """Return itself where clients send the D that they trained without noise."""
        return self if self.privacy == "none" and "discriminator" in self.uploaded else None

    def read_discriminator(self, parts: Mapping[str, Array]) -> NDArray[Any]:
        """Return the weights of D in a reply, for audits."""
        return np.asarray(parts["discriminator"]) / parts["weight"][0]

    def image_loss(self, D: nn.Module, x: Tensor, y: Tensor | None, real: bool) -> Tensor:
        """Return the loss of D on real images, or on fakes, for audits."""
        logits = D(x, y)
        return gan.bce(logits, torch.full_like(logits, float(real)))

    @property
    def synced(self) -> tuple[str, ...]:
        """The networks that clients take back: the paper's Sync_FLAG."""
        return {"d&g": NETWORKS, "g": NETWORKS[:1], "d": NETWORKS[1:], "none": ()}[self.sync]

    @property
    def uploaded(self) -> tuple[str, ...]:
        """The networks that clients upload; always the generator, which the run exports."""
        return NETWORKS if self.upload == "both" else tuple(dict.fromkeys(("generator", *self.synced)))

    def reply_spec(self) -> Mapping[str, PartSpec]:
        self.mechanism  # noqa: B018  calibrates the noise, and refuses settings that cannot be private
        return self.steps.specs(on_meta(self.nets))

    def specs(self, nets: gan.Nets) -> dict[str, PartSpec]:
        """Return the parts of `reply`."""
        parts = {n: PartSpec("sum", self.wire_dtype, vector_size(nets[n]), over="weight") for n in self.uploaded}
        return {**parts, "weight": PartSpec("sum", "float32", 1, least=0), **gan.LOSSES}

    @property
    def steps(self) -> FedGan | DpSgd | DpFedAvg:
        """The object that runs lines 4 to 14: the method itself, or the mechanism that `privacy` names."""
        return MECHANISMS[self.privacy](self) if self.privacy in MECHANISMS else self

    def base_mechanism(self) -> Mechanism | None:
        return None if isinstance(self.steps, FedGan) else self.steps.mechanism()
