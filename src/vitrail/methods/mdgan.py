"""MD-GAN: Multi-Discriminator Generative Adversarial Networks for Distributed Datasets.

Hardy, Le Merrer, Sericola; IPDPS 2019. One generator G on the server, one discriminator D_n per client. A round is one
global iteration of Algorithm 1: the server generates k batches; client n gets two of them, trains D_n for L steps on
its own images and X_d, and returns F_n, the gradient of G's loss with respect to the pixels of X_g; the server takes
one Adam step on the mean of all F_n, backpropagated through G. Discriminators are swapped at random every few rounds.
Traffic grows with the batch size and the image size, not with G.

Differences from the paper (the setting in brackets restores the paper's version):

- G and D are fedgan's conditional networks, not an ACGAN. G's loss is the non-saturating one (g_loss="minimax").
- Fakes are sent with 8 bits per value, gradients and discriminators as float16 (fake_dtype, wire_dtype="float32").
- A swap goes through the server, which draws the recipients: it costs bytes up and down, and takes effect in the next
  round. Adam restarts with a received discriminator, because its state is not sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from vitrail.data.dataset import Images
from vitrail.methods import fakes, gan
from vitrail.methods.base import BaseMethod, Broadcast, PartSpec, Reply, ServerMessage, Sums, is_sendable, setting
from vitrail.nets.dcgan import DcganDiscriminator, initialise
from vitrail.nets.flat import from_vector, on_meta, to_vector, vector_size
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, finite
from vitrail.wire.codecs import Array


@dataclass(frozen=True)
class MdGan(gan.GeneratorOnServer, BaseMethod):
    """MD-GAN: the settings, then Algorithm 1 from top to bottom."""

    k: int | None = setting(None, "batches of fakes per round; by default ⌊log2 N⌋ for N clients", ge=1)
    batch_size: int = setting(32, "images per batch (the paper's b)", ge=2)
    d_steps: int = setting(1, "steps of D per round (the paper's L)", ge=1)
    swap_every: int = setting(
        12, "rounds between swaps of discriminators; 0: never (paper: images per client / batch_size)", ge=0
    )
    width: int = setting(32, "channels of the layer nearest to the image", ge=4, le=512)
    latent_dim: int = setting(100, "dimensions of the noise z", ge=1, le=4096)
    lr: float = setting(2e-4, "Adam's learning rate", gt=0, le=1e3)
    beta1: float = setting(0.5, "Adam's β1; DCGAN uses 0.5", ge=0, lt=1)
    g_loss: Literal["nonsaturating", "minimax"] = setting("nonsaturating", "the generator's loss (paper: minimax)")
    fake_dtype: fakes.Form = setting("uint8", "number format of sent fakes (paper: float32)")
    wire_dtype: Literal["float32", "float16"] = setting(
        "float16", "number format of sent gradients and discriminators (paper: float32)"
    )

    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 400}

    # -- Algorithm 1, WORKER: client n ------------------------------------------------------------------------------

    def client_init(self, client: str, rng: Rng) -> State:  # noqa: ARG002
        """Initialize θ_n of D_n."""
        return {"discriminator": to_vector(initialise(self.discriminator(), rng.torch())), "adam": None}

    def worker(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Run one global iteration of WORKER on its images B_n; return its state, and F_n."""
        D_n = from_vector(self.discriminator(), state["discriminator"]).to(self.task.device).train()
        optimizer = self.adam(D_n, state["adam"])
        pick = rng.child("real").numpy().choice(len(data), min(self.batch_size, len(data)), replace=False)
        X_r, y_r = gan.image_batch(data, pick, self.task)  # X^(r) ← SAMPLES(B_n, b)
        (X_g, y_g), (X_d, y_d) = self.receive_batches(message)  # X^(g), X^(d) ← RECEIVEBATCHES(C)
        for _ in range(self.d_steps):  # L times: D_n ← DISCLEARNINGSTEP(J_disc, D_n)
            J_disc = F.softplus(-D_n(X_r, y_r)).mean() + F.softplus(D_n(X_d, y_d)).mean()
            gan.step(optimizer, J_disc)

        logits = D_n(X_g.requires_grad_(), y_g)
        loss_g = F.softplus(-logits) if self.g_loss == "nonsaturating" else -F.softplus(logits)
        (F_n,) = torch.autograd.grad(loss_g.sum(), X_g)  # F_n ← ∂B/∂x, x in X^(g); not /b: that underflows in float16
        parts = {
            "gradient": F_n.cpu().numpy(),  # SEND(C, F_n)
            "metric.loss_g": loss_g.detach().mean().reshape(1).cpu().numpy(),
            "metric.loss_d": J_disc.detach().reshape(1).cpu().numpy(),
        }
        theta_n, relay = to_vector(D_n), {}
        if "heir" in message.parts:  # if a swap is due: SEND(W_l, D_n); it trains its own D_n until another arrives
            W_l = bytes(message.parts["heir"]).decode()
            relay[W_l, "discriminator"] = theta_n
        return {"discriminator": theta_n, "adam": optimizer.state_dict()["state"]}, Reply(parts, relay)

    # -- Algorithm 1, SWAP ------------------------------------------------------------------------------------------

    def swap(self, t: int, clients: Sequence[str], rng: Rng) -> dict[str, str]:
        """Return the W_l that receives each client's D_n after iteration t: all in a random cycle; empty: not due."""
        due = self.swap_every and t % self.swap_every == 0 and t < self.task.rounds and len(clients) > 1
        cycle = [clients[i] for i in rng.child("swap").numpy().permutation(len(clients))] if due else []
        return dict(zip(cycle, cycle[1:] + cycle[:1], strict=True))

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Run WORKER with a received D (D_n ← RECEIVED) if that gives finite values, else its own, else a new one.

        Steps on a D from another client may be infinite.
        """
        received = list(message.relayed.values())[-1:]  # several only if the client was absent: the newest is used
        for before in (*({"discriminator": D, "adam": None} for D in received), state):
            after, reply = self.worker(before, message, data, rng)
            if finite(after) and is_sendable(*reply.parts.values(), *reply.relay.values()):
                return after, reply
        return self.worker(self.client_init("", rng.child("again")), message, data, rng)

    # -- Algorithm 1, SERVER ----------------------------------------------------------------------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:  # noqa: ARG002
        """Initialize w of G."""
        w = {"generator": to_vector(initialise(self.generator(), rng.child("generator").torch()))}
        return {"rounds": 0, **gan.init_or_warm_start(start, w), "adam": start["adam"] if start else None}

    def start_round(self, server: State, clients: Sequence[str], rng: Rng) -> tuple[State, Sequence[str]]:
        """Generate the k batches of this iteration.

        During a round the state has k batches, k gradients and two names per client in addition to what
        `finish_round` returns. `heir` is the result of SWAP: the recipient of each client's D.
        """
        G = from_vector(self.generator(), server["generator"]).to(self.task.device).train()
        t, seed = server["rounds"] + 1, rng.child("fakes").seed()
        k = min(self.k or len(clients).bit_length() - 1 or 1, len(clients))
        X = []
        for j in range(k):
            Z_j, y = self.noise(seed, j)  # Z_j ← GAUSSIANNOISE(b)
            with torch.no_grad():
                X_j = G(Z_j, y).cpu()  # X^(j) ← {G(z), z in Z_j}
            X.append({"x": fakes.pack(X_j, self.fake_dtype), "y": None if y is None else y.cpu().numpy()})
        turn = {client: n for n, client in enumerate(clients)}
        gradients = [np.zeros((self.batch_size, *self.task.shape)) for _ in range(k)]
        started = {"rounds": t, "seed": seed, "fakes": X, "turn": turn, "heir": self.swap(t, clients, rng)}
        return {**server, **started, "gradients": gradients}, clients

    def split(self, server: State, client: str) -> tuple[int, int]:
        """SPLIT: return the batches of client n, X^(g) = X^(n mod k) and X^(d) = X^((n+1) mod k)."""
        n, k = server["turn"][client], len(server["fakes"])
        return n % k, (n + 1) % k

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """For each n: SEND X^(g) and X^(d) (one batch if they are the same, k = 1) and, for a swap, the name W_l."""
        g, d = self.split(server, client)
        parts: dict[str, tuple[str, Array]] = {}
        for name, j in {"g": g, "d": d}.items() if g != d else [("g", g)]:
            x, y = server["fakes"][j]["x"], server["fakes"][j]["y"]
            parts |= fakes.message_parts(name, x, y, self.fake_dtype, self.task.classes)
        if client in server["heir"]:
            parts["heir"] = ("bytes", np.frombuffer(server["heir"][client].encode(), np.uint8))
        return Broadcast(parts)

    def receive(self, server: State, client: str, parts: Mapping[str, Array]) -> State:
        """GETFEEDBACKS: add F_n to the sum for its batch: memory for k gradients, whatever the number of clients."""
        j, _ = self.split(server, client)
        gradients = list(server["gradients"])
        gradients[j] = gradients[j] + parts["gradient"].reshape(gradients[j].shape)
        return {**server, "gradients": gradients}

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:  # noqa: ARG002
        """Compute Δw = 1/(N b) Σ_n Σ_i e_i ∂x_i/∂w from the e_i in F_n, x_i in X^(g); w ← w + ADAM(Δw)."""
        G = from_vector(self.generator(), server["generator"]).to(self.task.device).train()
        optimizer = self.adam(G, server["adam"])
        for j, total in enumerate(server["gradients"]):
            mean = torch.from_numpy((total / (sums.clients * self.batch_size)).astype(np.float32)).to(self.task.device)
            G(*self.noise(server["seed"], j)).backward(mean)  # the same fakes, now with their graph
        optimizer.step()
        return {"rounds": server["rounds"], "generator": to_vector(G), "adam": optimizer.state_dict()["state"]}

    # -- Noise and batches ------------------------------------------------------------------------------------------

    def noise(self, seed: int, j: int) -> gan.Batch:
        """Return Z_j and its labels, the same at every call."""
        return gan.sample_latent(self.batch_size, self.latent_dim, self.task, Rng((seed,)).child("batch", j).torch())

    def receive_batches(self, message: ServerMessage) -> tuple[gan.Batch, gan.Batch]:
        """Return X^(g) and X^(d) with their labels; one batch for both if k = 1."""
        names = ("g", "d" if "x_d" in message.parts else "g")
        parts = [(message.parts[f"x_{name}"], message.parts.get(f"y_{name}")) for name in names]
        g, d = (fakes.unpack(x, y, self.fake_dtype, self.task.device) for x, y in parts)
        return g, d

    # -- What both sides know ---------------------------------------------------------------------------------------

    def discriminator(self) -> DcganDiscriminator:
        """Return D, not initialized."""
        return DcganDiscriminator(self.task.shape, self.task.classes, self.width)

    def adam(self, net: nn.Module, state: State | None) -> torch.optim.Adam:
        """Return the Adam of a network."""
        return gan.adam(net, self.lr, (self.beta1, 0.999), state)

    def reply_spec(self) -> Mapping[str, PartSpec]:
        c, h, w = self.task.shape
        b = self.batch_size
        parts = {"gradient": PartSpec("each", self.wire_dtype, b * c * h * w, shape=(b, c, h, w)), **gan.LOSSES}
        if self.swap_every:
            parts["discriminator"] = PartSpec("relay", self.wire_dtype, vector_size(on_meta(self.discriminator)))
        return parts
