"""PaDPaF: Partial Disentanglement with Partially-Federated GANs; Almansoori, Horváth, Takáč; TMLR 2024. Algorithm 1.

An image is x = G^c(z^c, G^s_i(z^s), y). Content is federated (θ^fed): the generator's convolutions G^c and the content
discriminator D^c. Style is private to client i (θ_i^pvt): the vectorizer G^s_i, the conditional BatchNorm through which
its output enters G^c, and the style discriminator D^s_i. No private parameter is part of any message.

Differences from the paper:
- The server applies the mean update (server_opt="adam" is the paper's step, whose size does not depend on the size of
  the clients' updates: too large after few local steps), weighted by numbers of images (weighting="uniform": paper).
- GANOPT takes a D step and, every T_D steps, a G step after it; in the paper that step replaces the D step.
- The step counter t of line 8 continues over rounds; otherwise a client with few images would never train G.
- Features are centred in Barlow Twins. BatchNorm uses batch statistics in training and is calibrated with noise
  afterwards, so statistics are in no message. The published code's noise on images and channels is omitted.
- loss="hinge" is the published code's loss; "wasserstein" is the paper's.
- `shared` and `prox_mu` turn the same code into baselines: FedAvg, local training and FedProx.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.base import BaseMethod, clip_weights, is_sendable, setting
from vitrail.methods.messages import Broadcast, PartSpec, Reply, ServerMessage, Sums, Task
from vitrail.methods.padpaf.client_state import load_networks, private_state
from vitrail.methods.padpaf.losses import Form, ProximalTerm, d_loss, g_loss
from vitrail.models.model import Model
from vitrail.nets.barlow_twins import barlow_twins
from vitrail.nets.content_style import Content, ContentStyleGenerator, Style, initialise
from vitrail.nets.flat import from_vector, load_trainable, on_meta, to_vector, trainable_mask
from vitrail.nets.spectral_discriminator import SpectralDiscriminator, warm_up_spectral_norm
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, finite

if TYPE_CHECKING:
    from vitrail.methods.base import ContentStyleModels

Draw = Callable[..., gan.Batch]  # `latents` of a client
UNIT = 100  # weights count hundreds of images, so that weighted updates fit float16 for small and large clients


@dataclass(frozen=True)
class PaDPaF(BaseMethod):
    """Algorithm 1 with its settings; the paper's values are those for MNIST."""

    task: Task
    shared: Literal["content", "everything", "nothing"] = setting(
        "content",
        "federated networks: content (PaDPaF), everything (FedAvg), nothing (local training) (paper: content)",
    )
    prox_mu: float = setting(0.0, "μ of FedProx on federated networks (paper: 0)", ge=0, le=1e6)
    width: int = setting(32, "channels of every layer (paper: 64, CelebA 128)", ge=4, le=512)
    latent_dim: int = setting(64, "dimension of z^c and of z^s (paper: 128, CelebA 256)", ge=2, le=1024)
    style_depth: int = setting(4, "layers of the style vectorizer (published code: 8)", ge=1, le=16)
    lam: float = setting(0.1, "λ: weight of Barlow Twins (published code: 0.1)", ge=0, le=1e6)
    local_epochs: float = setting(0.5, "epochs over a client's images per round (paper: 0.5)", gt=0, le=1e4)
    loopless: bool = setting(False, "stop after each step with a fixed probability; local_epochs on average")
    batch_size: int = setting(64, "real images, and generated images, per step (published code: 32)", ge=2)
    lr: float = setting(1e-3, "η_i: clients' Adam learning rate of G, twice this for D (paper: 0.001)", gt=0, le=1e3)
    server_lr: float = setting(
        0.01, "η_0: server's Adam learning rate, with server_opt=adam (paper: 0.01)", gt=0, le=1e3
    )
    server_opt: Literal["average", "adam"] = setting(
        "average", "server step: mean update, or Adam on it, for rounds of many local steps (paper: adam)"
    )
    lr_decay: float = setting(0.99, "factor on all learning rates per round (paper: 0.99)", gt=0, le=1)
    label_maps: Literal["private", "federated"] = setting(
        "private",
        "label half of conditional BatchNorm; private: the server's generator ignores labels (paper: private)",
    )
    weighting: Literal["examples", "uniform"] = setting(
        "examples", "weight of a client: its number of images, or 1 (paper: uniform)"
    )
    wire_dtype: Literal["float32", "float16"] = setting("float32", "number format of sent weights (ours)")
    loss: Form = setting("hinge", "GAN loss: hinge (published code) or wasserstein (paper: wasserstein)")
    d_steps: int = setting(3, "T_D: steps of D per step of G (paper: 3)", ge=1)
    fake_labels: Literal["all", "own"] = setting(
        "all", "labels of generated images: all classes, or the client's own (paper: all)"
    )

    betas: ClassVar[tuple[float, float]] = (0.5, 0.9)  # of both Adam optimizers
    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 60}
    content_networks: ClassVar[tuple[str, ...]] = ("generator", "discriminator")
    style_networks: ClassVar[tuple[str, ...]] = ("style", "style_discriminator")
    metrics: ClassVar[tuple[str, ...]] = ("loss_d", "loss_g", "barlow_twins")

    # -- the model: θ_i = (θ^fed, θ_i^pvt) --------------------------------------------------------------------------

    def networks(self) -> gan.Nets:
        """Create G^c, D^c, G^s_i with its conditional BatchNorm, and D^s_i, not initialized."""
        t = self.task
        G_c = Content(t.shape, t.classes, self.width, self.latent_dim, self.label_maps == "federated")
        return {
            "generator": G_c,
            "discriminator": SpectralDiscriminator(t.shape, t.classes, self.width),
            "style": Style(G_c, self.style_depth),
            "style_discriminator": SpectralDiscriminator(t.shape, 0, self.width),
        }

    @property
    def federated(self) -> tuple[str, ...]:
        """Names of the networks in θ^fed."""
        everything = self.content_networks + self.style_networks
        return {"content": self.content_networks, "everything": everything, "nothing": ()}[self.shared]

    @property
    def has_personal_models(self) -> bool:
        return self.shared != "everything"

    def reply_spec(self) -> Mapping[str, PartSpec]:
        """Δ_i^fed times the client's weight, the weight, and metrics; nothing private."""
        nets = on_meta(self.networks)
        sizes = {name: int(trainable_mask(nets[name]).sum()) for name in self.federated}
        parts = {name: PartSpec("sum", self.wire_dtype, size, over="weight") for name, size in sizes.items()}
        metrics = {f"metric.{name}": PartSpec("sum", "float32", 1) for name in self.metrics}
        return {**parts, "weight": PartSpec("sum", "float32", 1, least=0), **metrics}

    # -- Algorithm 1 ------------------------------------------------------------------------------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:  # noqa: ARG002
        """Line 3, θ_i := θ_0: initialize θ_0^fed, and the seed from which every client draws the same θ_i^pvt."""
        nets = self.networks()
        names = self.federated or ("generator",)  # with shared=nothing the server's generator stays untrained
        first = {n: initialise(nets[n], rng.child(n).torch()) for n in names}
        vectors = gan.init_or_warm_start(start, {n: to_vector(net)[trainable_mask(net)] for n, net in first.items()})
        drawn = np.frombuffer(rng.child("style").seed().to_bytes(8, "little"), np.uint8)
        seed = drawn if start is None else start["seed"]
        return {**vectors, "adam": dict.fromkeys(self.federated), "rounds": 0, "seed": seed}

    # (lines 4 and 5: the engine runs τ_max = `rounds` rounds and samples `clients_per_round` clients I)

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Line 6, for each i in I in parallel: train θ_i, send Δ_i^fed, store θ_i^pvt."""
        theta_0 = {name: message.parts[name] for name in self.federated}
        nets = load_networks(self.networks(), state, theta_0, message.parts["seed"])  # θ_i(1)
        proximal = ProximalTerm(self.prox_mu, theta_0)
        training_state, metrics = self.train(nets, state, proximal, message.round, data, rng)  # lines 7 to 10

        n = np.float32(len(data) / UNIT if self.weighting == "examples" else 1.0)
        delta_i = {  # line 11: Δ_i ← θ_i(1) - θ_i(t) (line 12, Δ_i^pvt ← 0: only federated networks are sent)
            name: n * (theta.astype(np.float32) - to_vector(nets[name])[trainable_mask(nets[name])])
            for name, theta in theta_0.items()
        }
        after: State = {**private_state(nets, self.federated), **training_state}
        if not finite(after) or not is_sendable(*delta_i.values()):  # diverged: this client changes nothing
            after, delta_i = state, {name: np.zeros_like(delta) for name, delta in delta_i.items()}
        means = {f"metric.{k}": v for k, v in zip(self.metrics, metrics[:, None], strict=True)}
        return after, Reply({"weight": np.array([n]), **delta_i, **means})

    def train(
        self, nets: gan.Nets, state: State, proximal: ProximalTerm, tau: int, data: Images, rng: Rng
    ) -> tuple[State, NDArray[Any]]:
        """Lines 7 to 10 of round τ: train all networks in place.

        Returns:
            The step counter and both Adam states, which a client stores between rounds; and the means of `metrics`.
        """
        model = ClientGan.of(nets, self.task.device)
        opt_i = self.client_optimizers(model, state, tau)
        noise = partial(latents, self, labels_of_fakes(self, data), rng.child("training").torch())
        t = state.get("t", 0)
        losses: list[Tensor] = []
        for xi in local_batches(self, data, rng):  # lines 7, 10 and 24: ξ ~ q(·|i), until stopped
            t += 1
            train_G = t % self.d_steps == 0  # line 8
            losses.append(self.ganopt(model, opt_i, train_G, xi, noise, proximal))  # line 9
        training_state = {"t": t, "optimizers": {name: opt.state_dict()["state"] for name, opt in opt_i.items()}}
        return training_state, torch.stack(losses).mean(0).cpu().numpy()

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:  # noqa: ARG002
        """Line 17: θ_0(τ+1) ← OPT_0(mean of Δ_i; θ_0(τ), η_0)."""
        after: State = {**server, "adam": {}, "rounds": server["rounds"] + 1}
        for name in self.federated:
            theta_0 = nn.ParameterList([torch.from_numpy(np.array(server[name], np.float32))])
            theta_0[0].grad = torch.from_numpy(gan.weighted_mean(sums, name).astype(np.float32))
            opt_0 = self.server_optimizer(theta_0, server["adam"][name], server["rounds"])
            opt_0.step()
            after[name] = clip_weights(theta_0[0].detach().numpy())
            after["adam"][name] = opt_0.state_dict()["state"]
        return after

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """Line 18: θ_i^fed ← θ_0^fed for all clients, with their next request."""
        theta_0 = {name: (self.wire_dtype, server[name]) for name in self.federated}
        return Broadcast({**theta_0, "seed": ("bytes", server["seed"])})

    # -- lines 20 to 27: GANOPT -------------------------------------------------------------------------------------

    def ganopt(
        self, model: ClientGan, opt_i: gan.Optimizers, train_G: bool, xi: gan.Batch, noise: Draw, proximal: ProximalTerm
    ) -> Tensor:
        """Take a step of D on ξ and, if train_G, a step of G after it; return the metrics."""
        minus_f, twins, loss_g = self.d_objective(model, xi, noise(pairs=True))
        gan.step(opt_i["D"], minus_f + self.lam * twins + proximal(model.D_nets))  # line 25 with F_i, Eq. 15
        if train_G:  # line 21
            z, y = noise()
            model.D.requires_grad_(False)
            fake = model.G(z, y)
            f = g_loss(model.D_c(fake, y)) + g_loss(model.D_s(fake))
            gan.step(opt_i["G"], f + proximal(model.G_nets))  # line 22
            model.D.requires_grad_(True)
        return torch.stack([minus_f, loss_g, twins]).detach()

    def d_objective(self, model: ClientGan, xi: gan.Batch, noise: gan.Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return -f_i (Eq. 9), Γ_i (Eq. 14) and the generator's loss; `noise` is from `latents` with pairs."""
        x, y = xi
        z, y_fake = noise
        with torch.no_grad():  # sg of Eq. 14
            fake, same_content, same_style = model.G(z, y_fake).chunk(3)  # of (z^c, z^s), (z^c, z̃^s), (z̃^c, z^s)
        y_fake = None if y_fake is None else y_fake[: len(fake)]
        sizes = [len(x), len(fake), len(fake)]
        phi_c = model.D_c.features(torch.cat([x, fake, same_content])).split(sizes)
        phi_s = model.D_s.features(torch.cat([x, fake, same_style])).split(sizes)
        out_c = model.D_c.head(phi_c[0], y), model.D_c.head(phi_c[1], y_fake)
        out_s = model.D_s.head(phi_s[0]), model.D_s.head(phi_s[1])
        minus_f = d_loss(*out_c, self.loss) + d_loss(*out_s, self.loss)
        twins_c = barlow_twins(model.D_c.project(phi_c[1]), model.D_c.project(phi_c[2]))
        twins_s = barlow_twins(model.D_s.project(phi_s[1]), model.D_s.project(phi_s[2]))
        return minus_f, twins_c + twins_s, g_loss(out_c[1]) + g_loss(out_s[1])

    # -- line 2, output ---------------------------------------------------------------------------------------------

    def export_models(self, server: State, client: State | None = None) -> Mapping[str, Model]:
        """Return a client's generator, or the server's: content without style (γ = 1, β = 0)."""
        has: State = {"generator": server["generator"], **(client or {}), **{n: server[n] for n in self.federated}}
        nets = self.networks()
        tree = {"shape": list(self.task.shape), "classes": self.task.classes, "width": self.width}
        tree |= {"latent": self.latent_dim, "style_depth": self.style_depth, "label_maps": self.label_maps}
        tree["content"] = from_vector(nets["generator"], has["generator"]).state_dict()
        if "style" in has:
            tree["style"] = from_vector(nets["style"], has["style"]).state_dict()
        return {"generator": Model("padpaf", tree)}

    @property
    def separates_style(self) -> bool:
        """Whether `content_style_models` is available: content is federated and style is private."""
        return self.shared == "content"

    def content_style_models(self, server: State, client: State | None = None) -> ContentStyleModels:
        """Return a client's generator, D^c and D^s_i for analysis; without a client's state, its initial ones."""
        nets = self.networks()
        if client is None:
            client = private_state(load_networks(nets, {}, {}, server["seed"]), self.content_networks)
        D_c, D_s = nets["discriminator"], nets["style_discriminator"]
        warm_up_spectral_norm(load_trainable(D_c, server["discriminator"]))
        from_vector(D_s, client["style_discriminator"])
        return self.export_models(server, client)["generator"], D_c, D_s

    # -- optimizers -------------------------------------------------------------------------------------------------

    def client_optimizers(self, model: ClientGan, state: State, tau: int) -> gan.Optimizers:
        """Return OPT_i of G, with η_i of round τ, and of D, with 2η_i."""
        eta_i = self.lr * self.lr_decay**tau
        adam = state.get("optimizers", {"G": None, "D": None})
        opt_G = gan.adam(model.G, eta_i, self.betas, adam["G"])
        return {"G": opt_G, "D": gan.adam(model.D, 2 * eta_i, self.betas, adam["D"])}

    def server_optimizer(self, theta_0: nn.Module, adam: State | None, tau: int) -> torch.optim.Optimizer:
        """Return OPT_0 with η_0 of round τ; SGD with step size 1 applies the mean update."""
        if self.server_opt == "average":
            return torch.optim.SGD(theta_0.parameters(), 1.0)
        return gan.adam(theta_0, self.server_lr * self.lr_decay**tau, self.betas, adam)


# -- used by GANOPT -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClientGan:
    """A client's networks in training mode: G of content and style, D^c and D^s_i, and both as one module D."""

    G: ContentStyleGenerator
    D_c: SpectralDiscriminator
    D_s: SpectralDiscriminator
    D: nn.ModuleList
    G_nets: gan.Nets  # of θ^G, by name
    D_nets: gan.Nets  # of θ^D, by name

    @staticmethod
    def of(nets: gan.Nets, device: str) -> ClientGan:
        """Join the networks of `PaDPaF.networks`."""
        G_c, G_s, D_c, D_s = (nets[name] for name in ("generator", "style", "discriminator", "style_discriminator"))
        G, D = ContentStyleGenerator(G_c, G_s).to(device).train(), nn.ModuleList([D_c, D_s]).to(device).train()
        D.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster on a CPU
        D_nets: gan.Nets = {"discriminator": D_c, "style_discriminator": D_s}
        return ClientGan(G, D_c, D_s, D, {"generator": G_c, "style": G_s}, D_nets)


def labels_of_fakes(run: PaDPaF, data: Images) -> Tensor | None:
    """Return the labels from which those of generated images are drawn uniformly; None without labels."""
    if not run.task.classes:
        return None
    if run.fake_labels == "own" and data.labels is not None:
        return torch.from_numpy(np.unique(data.labels))
    return torch.arange(run.task.classes)


def latents(run: PaDPaF, labels: Tensor | None, draw: torch.Generator, pairs: bool = False) -> gan.Batch:
    """Draw (z^c, z^s) and y; with pairs also (z^c, z̃^s) and (z̃^c, z^s), in this order."""
    c, s, c2, s2 = torch.randn(4, run.batch_size, run.latent_dim, generator=draw)
    z = torch.cat([c, s], 1)
    y = None if labels is None else labels[torch.randint(len(labels), (run.batch_size,), generator=draw)]
    if pairs:
        z = torch.cat([z, torch.cat([c, s2], 1), torch.cat([c2, s], 1)])
        y = None if y is None else y.repeat(3)
    return z.to(run.task.device), None if y is None else y.to(run.task.device)


def local_batches(run: PaDPaF, data: Images, rng: Rng) -> Iterator[gan.Batch]:
    """Yield the batches of `local_epochs`; loopless, of a geometric number of steps (line 10, π_i ∝ 1/|X_i|)."""
    per_epoch = -(-len(data) // run.batch_size)
    steps = max(1, round(run.local_epochs * per_epoch))
    if run.loopless:
        steps = int(rng.child("loopless").numpy().geometric(1 / steps))
    return islice(gan.epochs(data, math.ceil(steps / per_epoch), run.batch_size, run.task, rng), steps)
