"""GS-WGAN: A Gradient-Sanitized Approach for Learning Differentially Private Generators, with clients.

Chen, Orekondy, Fritz; NeurIPS 2020; Algorithm 1. One generator G on the server; each client has a Wasserstein critic
D_k with gradient penalty, which it never sends. G depends on a client's images only through the gradient of D_k with
respect to the fakes, so that gradient is sanitized (Eq. 5 and 6): clipped to norm C for each fake, plus noise. The
penalty makes a critic nearly 1-Lipschitz, so C = 1 loses little.

Privacy: a reply is B vectors of norm at most C, whatever the client's data, so replacing the client changes it by at
most 2C√B. The client's noise therefore protects its whole data.

Differences from the paper:

- Amplification by secretly drawing one of 1000 critics is not claimed: clients take turns in public, and every reply
  counts in full.
- G and the critics are fedgan's networks (critics with GroupNorm). Critics are not warmed up before the first round.
- A critic's steps draw from the `num_fakes` fakes that it was sent in the round, which include those of G's step.
- The penalty interpolates between a real image and a fake of any label, with the label of the real one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.dataset import Images
from vitrail.methods import fakes, gan
from vitrail.methods.base import Broadcast, PartSpec, Reply, ServerMessage, Sums, setting
from vitrail.methods.private import PrivateMethod
from vitrail.nets.dcgan import DcganDiscriminator, initialise
from vitrail.nets.flat import from_vector, to_vector
from vitrail.privacy.clipping import clipped_rows, noised
from vitrail.privacy.mechanism import Mechanism, Noise
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

LIMIT = 2.0**15  # gradients are clipped to it after the noise, so that they fit float16


@dataclass(frozen=True)
class GsWgan(gan.GeneratorOnServer, PrivateMethod):
    """GS-WGAN: the settings, then Algorithm 1 from top to bottom."""

    privacy: Literal["none", "gradient"] = setting(
        "none", "gradient: clip and noise the gradient with respect to each fake (paper: gradient)"
    )
    max_grad_norm: float = setting(
        1.0, "privacy: largest norm of the gradient with respect to one fake, C (paper: 1)", ge=1e-6, le=1e4
    )
    active_clients: int = setting(1, "clients that take part in a round, in turn (paper: 1)", ge=1)
    batch_size: int = setting(32, "fakes whose gradients are returned, B", ge=2)
    num_fakes: int = setting(128, "fakes sent to a client, including the batch (ours)", ge=2)
    d_steps: int = setting(10, "steps of a critic per round", ge=1)
    d_batch_size: int = setting(32, "real images, and fakes, per step of a critic", ge=1)
    gradient_penalty: float = setting(10.0, "weight of the critic's gradient penalty, λ (paper: 10)", ge=0, le=1e6)
    width: int = setting(32, "channels of the layer nearest to the image", ge=4, le=512)
    latent_dim: int = setting(100, "dimensions of the noise z", ge=1, le=4096)
    lr: float = setting(2e-4, "Adam's learning rate", gt=0, le=1e3)
    beta1: float = setting(0.5, "Adam's β1", ge=0, lt=1)
    fake_dtype: fakes.Form = setting("uint8", "number format of fakes in messages")
    wire_dtype: Literal["float32", "float16"] = setting("float32", "number format of gradients in messages")

    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 400}
    mechanisms: ClassVar[tuple[str, ...]] = ("gradient",)

    # -- Algorithm 1: initialize θ_D of each critic, and θ_G --------------------------------------------------------

    def client_init(self, client: str, rng: Rng) -> State:  # noqa: ARG002
        """Initialize θ_D of D_k (without the warm start)."""
        return {"critic": to_vector(initialise(self.critic(), rng.torch())), "adam": None}

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:  # noqa: ARG002
        """Initialize θ_G."""
        theta_G = {"generator": to_vector(initialise(self.generator(), rng.child("generator").torch()))}
        return {**gan.init_or_warm_start(start, theta_G), "adam": start["adam"] if start else None, "turns": {}}

    # -- For each training step: select the index k, and generate fakes for D_k -------------------------------------

    def start_round(self, server: State, clients: Sequence[str], rng: Rng) -> tuple[State, Sequence[str]]:
        """Select the clients k with the fewest turns, in a private run none beyond `max_replies`; generate fakes.

        The paper draws k at random; here it is public (see above).
        """
        turns = server["turns"]
        ready = [c for c in clients if self.mechanism is None or turns.get(c, 0) < self.max_replies]
        who = sorted(sorted(ready, key=lambda c: turns.get(c, 0))[: self.active_clients], key=list(clients).index)
        seed = rng.child("fakes").seed()
        G = from_vector(self.generator(), server["generator"]).to(self.task.device).train()
        z, y = self.noise(seed)  # z_i ~ P_z, of the steps of D_k and of the step of G
        with torch.no_grad():
            x = fakes.pack(G(z, y).cpu(), self.fake_dtype)
        started = {"seed": seed, "x": x, "y": None if y is None else y.cpu().numpy()}
        return {**server, **started, "turns": turns | {c: turns.get(c, 0) + 1 for c in who}}, who

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """Send the fakes G(z_i)."""
        return Broadcast(fakes.message_parts("fake", server["x"], server["y"], self.fake_dtype, self.task.classes))

    # -- Client k: train D_k, and sanitize the gradient for G -------------------------------------------------------

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Train θ_D of D_k on the client's images S_k, then return the sanitized gradient of L_G for each fake."""
        D = from_vector(self.critic(), state["critic"]).to(self.task.device).train()
        optimizer = self.adam(D, state["adam"])
        sent = message.parts["x_fake"], message.parts.get("y_fake")
        x_fake, y_fake = fakes.unpack(*sent, self.fake_dtype, self.task.device)
        pick, m, losses = rng.child("real").numpy(), min(self.d_batch_size, len(data), len(x_fake)), []
        for _ in range(self.d_steps):  # n_dis times
            real = gan.image_batch(data, pick.choice(len(data), m, replace=False), self.task)  # x_i from S_k
            some = torch.from_numpy(pick.choice(len(x_fake), m, replace=False)).to(self.task.device)
            fake = x_fake[some], None if y_fake is None else y_fake[some]  # G(z_i)
            between = torch.from_numpy(pick.random((m, 1, 1, 1), np.float32)).to(self.task.device)
            L_D = critic_loss(D, real, fake, between, self.gradient_penalty)
            gan.step(optimizer, L_D)  # θ_D ← Adam(θ_D, ∇L_D)
            losses.append(float(L_D.detach()))

        x_b, y_b = x_fake[: self.batch_size].requires_grad_(), None if y_fake is None else y_fake[: self.batch_size]
        L_G = -D(x_b, y_b)
        (g,) = torch.autograd.grad(L_G.sum(), x_b)  # g_i ← ∇L_G with respect to G(z_i)
        g_up = g.flatten(1).cpu().numpy().astype(np.float64)
        parts: dict[str, Any] = {}
        if self.mechanism is not None:
            g_up = clipped_rows(g_up, self.max_grad_norm)  # Eq. 5: g_i · min(1, C / |g_i|)
            g_up = noised(g_up.ravel(), self.mechanism.sigma, self.source(rng.child("noise")))  # Eq. 6: + N(0, σ²I)
        else:
            parts["metric.loss_g"] = L_G.detach().mean().reshape(1).cpu().numpy()
            parts["metric.loss_d"] = np.array([np.mean(losses)])
        parts["gradient"] = np.clip(g_up, -LIMIT, LIMIT).ravel()
        return {"critic": to_vector(D), "adam": optimizer.state_dict()["state"]}, Reply(parts)

    # -- The server: θ_G ← Adam(θ_G, sanitized gradient · ∂G(z)/∂θ_G) -----------------------------------------------

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:  # noqa: ARG002
        """Take an Adam step of θ_G on Σ_k Σ_i g_i ∂G(z_i)/∂θ_G / (K B)."""
        lasting = {name: server[name] for name in ("generator", "adam", "turns")}
        if not sums.clients:  # all turns are used up
            return lasting
        G = from_vector(self.generator(), server["generator"]).to(self.task.device).train()
        optimizer = self.adam(G, server["adam"])
        g = torch.zeros(self.sent, *self.task.shape)
        of_batch = sums.values["gradient"].reshape(self.batch_size, *self.task.shape)
        g[: self.batch_size] = torch.from_numpy((of_batch / (sums.clients * self.batch_size)).astype(np.float32))
        G(*self.noise(server["seed"])).backward(g.to(self.task.device))  # the same fakes, now with their graph
        optimizer.step()
        return {**lasting, "generator": to_vector(G), "adam": optimizer.state_dict()["state"]}

    # -- What both sides know ---------------------------------------------------------------------------------------

    def noise(self, seed: int) -> gan.Batch:
        """Return z and labels of the fakes, the same at every call."""
        return gan.sample_latent(self.sent, self.latent_dim, self.task, Rng((seed,)).child("pool").torch())

    def critic(self) -> DcganDiscriminator:
        """Return D_k, not initialized."""
        return DcganDiscriminator(self.task.shape, self.task.classes, self.width, "group")

    def adam(self, net: nn.Module, state: State | None) -> torch.optim.Adam:
        """Return the Adam of a network, with WGAN-GP's β2."""
        return gan.adam(net, self.lr, (self.beta1, 0.9), state)

    @property
    def sent(self) -> int:
        """Number of fakes sent to a client."""
        return max(self.num_fakes, self.batch_size)

    @property
    def max_replies(self) -> int:
        """Turns of one client; they are distributed evenly."""
        return min(self.task.rounds, math.ceil(self.task.rounds * self.active_clients / self.task.clients))

    def base_mechanism(self) -> Mechanism | None:
        if self.privacy == "none":
            return None
        return Mechanism(
            name="gradient",
            unit="client",
            adjacency="replace one",
            sensitivity=2 * self.max_grad_norm * math.sqrt(self.batch_size),
            why=f"the gradient with respect to each of {self.batch_size} fakes is scaled to norm "
            f"{self.max_grad_norm:g} or less, so two replies differ by at most 2 · {self.max_grad_norm:g} · "
            f"√{self.batch_size}",
            noise=Noise(1.0),
            once=False,
            leaves="the gradient of the client's critic with respect to the fakes it was sent, clipped and noised",
            trust="no one: the noise is added on the client",
            noised="gradients",
        )

    def reply_spec(self) -> Mapping[str, PartSpec]:
        gradient = PartSpec("sum", self.wire_dtype, self.batch_size * math.prod(self.task.shape), LIMIT)
        return {"gradient": gradient, **({} if self.mechanism else gan.LOSSES)}


def critic_loss(D: nn.Module, real: gan.Batch, fake: gan.Batch, between: Tensor, penalty: float) -> Tensor:
    """Return L_D: the mean of D(x̃) - D(x) + λ (|∇D(x̂)| - 1)², x̂ on the line from a fake x̃ to a real image x."""
    (x, y), (x_fake, y_fake) = real, fake
    x_hat = (between * x + (1 - between) * x_fake).requires_grad_()
    (slope,) = torch.autograd.grad(D(x_hat, y).sum(), x_hat, create_graph=True)
    norm = (slope.flatten(1).square().sum(1) + 1e-12).sqrt()
    return D(x_fake, y_fake).mean() - D(x, y).mean() + penalty * (norm - 1).square().mean()
