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
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from vitrail.data.dataset import Images
from vitrail.methods import fakes, gan
from vitrail.methods.base import BaseMethod, Broadcast, Model, PartSpec, Reply, ServerMessage, Sums, is_sendable
from vitrail.nets.dcgan import DcganDiscriminator, DcganGenerator, initialise
from vitrail.nets.flat import from_vector, to_vector, vector_size
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, finite
from vitrail.wire.codecs import Array


@dataclass(frozen=True)
class MdGan(BaseMethod):
    """MD-GAN: the settings, then Algorithm 1 from top to bottom."""

    k: Annotated[
        int | None, Field(ge=1, description="batches of fakes per round; by default ⌊log2 N⌋ for N clients")
    ] = None
    batch_size: Annotated[int, Field(ge=2, description="images per batch (the paper's b)")] = 32
    d_steps: Annotated[int, Field(ge=1, description="steps of D per round (the paper's L)")] = 1
    swap_every: Annotated[
        int,
        Field(
            ge=0, description="rounds between swaps of discriminators; 0: never (paper: images per client / batch_size)"
        ),
    ] = 12
    width: Annotated[int, Field(ge=4, le=512, description="channels of the layer nearest to the image")] = 32
    latent_dim: Annotated[int, Field(ge=1, le=4096, description="dimensions of the noise z")] = 100
    lr: Annotated[float, Field(gt=0, le=1e3, description="Adam's learning rate")] = 2e-4
    beta1: Annotated[float, Field(ge=0, lt=1, description="Adam's β1; DCGAN uses 0.5")] = 0.5
    g_loss: Annotated[
        Literal["nonsaturating", "minimax"], Field(description="the generator's loss (paper: minimax)")
    ] = "nonsaturating"
    fake_dtype: Annotated[fakes.Form, Field(description="number format of fakes in messages")] = "uint8"
    wire_dtype: Annotated[
        Literal["float32", "float16"], Field(description="number format of gradients and swapped discriminators")
    ] = "float16"

    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 400}

    # -- Step 1: the server generates batches X^(1), ..., X^(k), and sends two to each client ------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:  # noqa: ARG002
        """Initialize G; each client initializes its own D."""
        first = {"generator": to_vector(initialise(self.generator(), rng.child("generator").torch()))}
        return {"rounds": 0, **gan.init_or_warm_start(start, first), "adam": start["adam"] if start else None}

    def start_round(self, server: State, clients: Sequence[str], rng: Rng) -> tuple[State, Sequence[str]]:
        """Generate k batches and, if a swap is due, draw a cycle through all clients.

        During a round the state has k batches, k gradients and two names per client in addition to what
        `finish_round` returns.
        """
        G = from_vector(self.generator(), server["generator"]).to(self.task.device).train()
        seed = rng.child("fakes").seed()
        k = min(self.k or len(clients).bit_length() - 1 or 1, len(clients))
        batches = []
        for j in range(k):
            z, y = self.noise(seed, j)
            with torch.no_grad():
                x = G(z, y).cpu()
            batches.append({"x": fakes.pack(x, self.fake_dtype), "y": None if y is None else y.cpu().numpy()})
        t = server["rounds"] + 1
        due = self.swap_every and t % self.swap_every == 0 and t < self.task.rounds and len(clients) > 1
        cycle = [clients[i] for i in rng.child("swap").numpy().permutation(len(clients))] if due else []
        started = {
            "rounds": t,
            "seed": seed,
            "fakes": batches,
            "turn": {client: n for n, client in enumerate(clients)},
            "heir": dict(zip(cycle, cycle[1:] + cycle[:1], strict=True)),
            "gradients": [np.zeros((self.batch_size, *self.task.shape)) for _ in range(k)],
        }
        return {**server, **started}, clients

    def noise(self, seed: int, j: int) -> gan.Batch:
        """Return Z_j and its labels, the same at every call."""
        return gan.sample_latent(self.batch_size, self.latent_dim, self.task, Rng((seed,)).child("batch", j).torch())

    def split(self, server: State, client: str) -> tuple[int, int]:
        """Return the batches of client n: X_g = X^(n mod k), X_d = X^((n+1) mod k)."""
        n, k = server["turn"][client], len(server["fakes"])
        return n % k, (n + 1) % k

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """Send X_g and X_d (one batch if they are the same, k = 1) and, for a swap, the recipient of the client's D."""
        g, d = self.split(server, client)
        parts: dict[str, tuple[str, Array]] = {}
        for name, j in {"g": g, "d": d}.items() if g != d else [("g", g)]:
            x, y = server["fakes"][j]["x"], server["fakes"][j]["y"]
            parts |= fakes.message_parts(name, x, y, self.fake_dtype, self.task.classes)
        if client in server["heir"]:
            parts["heir"] = ("bytes", np.frombuffer(server["heir"][client].encode(), np.uint8))
        return Broadcast(parts)

    # -- Steps 2 and 3: client n trains D_n and returns F_n ---------------------------------------------------------

    def client_init(self, client: str, rng: Rng) -> State:  # noqa: ARG002
        """Initialize D_n."""
        return {"discriminator": to_vector(initialise(self.discriminator(), rng.torch())), "adam": None}

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Run the client's part with a received D if that gives finite values, else with its own, else with a new one.

        Steps on a D from another client may be infinite.
        """
        received = list(message.relayed.values())[-1:]  # several only if the client was absent: the newest is used
        for before in (*({"discriminator": D, "adam": None} for D in received), state):
            after, reply = self.trained(before, message, data, rng)
            if finite(after) and is_sendable(*reply.parts.values(), *reply.relay.values()):
                return after, reply
        return self.trained(self.client_init("", rng.child("again")), message, data, rng)

    def trained(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Take L steps of D_n on X_r and X_d, then compute F_n on X_g."""
        D = from_vector(self.discriminator(), state["discriminator"]).to(self.task.device).train()
        optimizer = self.adam(D, state["adam"])
        x_r, y_r = self.sample(data, rng)
        x_g, y_g = self.unpack(message, "g")
        x_d, y_d = self.unpack(message, "d") if "x_d" in message.parts else (x_g, y_g)
        for _ in range(self.d_steps):
            loss_d = F.softplus(-D(x_r, y_r)).mean() + F.softplus(D(x_d, y_d)).mean()  # J_disc
            gan.step(optimizer, loss_d)

        logits = D(x_g.requires_grad_(), y_g)
        loss_g = F.softplus(-logits) if self.g_loss == "nonsaturating" else -F.softplus(logits)
        (e,) = torch.autograd.grad(loss_g.sum(), x_g)  # F_n, not divided by b: that would underflow in float16
        parts = {
            "gradient": e.cpu().numpy(),
            "metric.loss_g": loss_g.detach().mean().reshape(1).cpu().numpy(),
            "metric.loss_d": loss_d.detach().reshape(1).cpu().numpy(),
        }
        vector, relay = to_vector(D), {}
        if "heir" in message.parts:  # SWAP; the client trains its own D until another one arrives
            relay[bytes(message.parts["heir"]).decode(), "discriminator"] = vector
        return {"discriminator": vector, "adam": optimizer.state_dict()["state"]}, Reply(parts, relay)

    def sample(self, data: Images, rng: Rng) -> gan.Batch:
        """Return X_r: b of the client's images, or all if it has fewer."""
        pick = rng.child("real").numpy().choice(len(data), min(self.batch_size, len(data)), replace=False)
        return gan.image_batch(data, pick, self.task)

    def unpack(self, message: ServerMessage, name: str) -> gan.Batch:
        """Return a received batch of fakes and its labels."""
        x, y = message.parts[f"x_{name}"], message.parts.get(f"y_{name}")
        return fakes.unpack(x, y, self.fake_dtype, self.task.device)

    # -- Step 4: the server updates G -------------------------------------------------------------------------------

    def receive(self, server: State, client: str, parts: Mapping[str, Array]) -> State:
        """Add F_n to the sum for its batch: memory for k gradients, whatever the number of clients."""
        j, _ = self.split(server, client)
        gradients = list(server["gradients"])
        gradients[j] = gradients[j] + parts["gradient"].reshape(gradients[j].shape)
        return {**server, "gradients": gradients}

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:  # noqa: ARG002
        """Take an Adam step on Δw = 1/(N b) Σ_n Σ_i e_i ∂x_i/∂w, over the images x_i of all X_g."""
        G = from_vector(self.generator(), server["generator"]).to(self.task.device).train()
        optimizer = self.adam(G, server["adam"])
        for j, total in enumerate(server["gradients"]):
            mean = torch.from_numpy((total / (sums.clients * self.batch_size)).astype(np.float32)).to(self.task.device)
            G(*self.noise(server["seed"], j)).backward(mean)  # the same fakes, now with their graph
        optimizer.step()
        return {"rounds": server["rounds"], "generator": to_vector(G), "adam": optimizer.state_dict()["state"]}

    def export_models(self, server: State, client: State | None = None) -> Mapping[str, Model]:  # noqa: ARG002
        """Return the server's generator; clients have none."""
        return gan.generator_model(server["generator"], self.task, self.width, self.latent_dim)

    # -- What both sides know ---------------------------------------------------------------------------------------

    def generator(self) -> DcganGenerator:
        """Return G, not initialized."""
        return DcganGenerator(self.task.shape, self.task.classes, self.width, self.latent_dim)

    def discriminator(self) -> DcganDiscriminator:
        """Return D, not initialized."""
        return DcganDiscriminator(self.task.shape, self.task.classes, self.width)

    def adam(self, net: nn.Module, state: State | None) -> torch.optim.Adam:
        """Return the Adam of a network."""
        return gan.adam(net, self.lr, (self.beta1, 0.999), state)

    def reply_spec(self) -> Mapping[str, PartSpec]:
        c, h, w = self.task.shape
        b, one = self.batch_size, PartSpec("sum", "float32", 1)
        gradient = PartSpec("each", self.wire_dtype, b * c * h * w, shape=(b, c, h, w))
        parts = {"gradient": gradient, "metric.loss_g": one, "metric.loss_d": one}
        if self.swap_every:
            with torch.device("meta"):
                parts["discriminator"] = PartSpec("relay", self.wire_dtype, vector_size(self.discriminator()))
        return parts
