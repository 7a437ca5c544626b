"""MD-GAN: Multi-Discriminator Generative Adversarial Networks for Distributed Datasets.

Hardy, Le Merrer, Sericola; IPDPS 2019. One generator G on the server, one discriminator D_n per client. A round is one
global iteration of Algorithm 1: the server makes k batches of fakes; client n gets two of them, trains D_n for L steps
on its own pictures and X_d, and sends back F_n, the gradient of G's loss by the pixels of X_g; the server takes one
Adam step on the mean of all F_n, backpropagated through G. Every few rounds discriminators change places at random.

What travels is fakes, their labels, gradients and swapped discriminators, all counted as sent. It grows with `batch`
and the pictures' size, not with G. One step of G a round is the paper's: more of them take more rounds.

What differs from the paper: G and D are fedgan's conditional networks, not an ACGAN; G's loss is the non-saturating one
(g_loss="minimax" is the paper's); fakes travel with 8 bits a value, as real pictures have, gradients and discriminators
as float16 (pictures="float32" and wire="float32" lose nothing); a swap goes through the server, which draws who sends
to whom, so that it costs its bytes up and down and takes effect in the next round; Adam starts anew with a
discriminator that comes in, as its averages do not travel.
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
from vitrail.methods.base import BaseMethod, Broadcast, Model, PartSpec, Reply, ServerMessage, Sums, Task, is_sendable
from vitrail.nets.dcgan import DcganDiscriminator, DcganGenerator, initialise
from vitrail.nets.flat import from_vector, to_vector, vector_size
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, finite
from vitrail.wire.codecs import Array


@dataclass(frozen=True)
class MdGan(BaseMethod):
    """MD-GAN's settings."""

    task: Task
    k: Annotated[
        int | None, Field(ge=1, description="batches of fakes in a round; by default ⌊log2 N⌋ of N clients")
    ] = None
    batch_size: Annotated[int, Field(ge=2, description="pictures in a batch (the paper's b)")] = 32
    d_steps: Annotated[int, Field(ge=1, description="steps of D in a round (the paper's L)")] = 1
    swap_every: Annotated[
        int,
        Field(ge=0, description="rounds between swaps of discriminators, 0: never (paper: pictures a client / batch)"),
    ] = 12
    width: Annotated[int, Field(ge=4, le=512, description="channels of the layer nearest to the picture")] = 32
    latent_dim: Annotated[int, Field(ge=1, le=4096, description="noise dimensions")] = 100
    lr: Annotated[float, Field(gt=0, le=1e3, description="Adam's learning rate")] = 2e-4
    beta1: Annotated[float, Field(ge=0, lt=1, description="Adam's first average; DCGAN's 0.5")] = 0.5
    g_loss: Annotated[Literal["nonsaturating", "minimax"], Field(description="the generator's loss")] = "nonsaturating"
    fake_dtype: Annotated[fakes.Form, Field(description="how fakes travel")] = "uint8"
    wire_dtype: Annotated[
        Literal["float32", "float16"], Field(description="how gradients and swapped discriminators travel")
    ] = "float16"

    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 400}

    def generator(self) -> DcganGenerator:
        """G, not yet initialised."""
        return DcganGenerator(self.task.shape, self.task.classes, self.width, self.latent_dim)

    def discriminator(self) -> DcganDiscriminator:
        """D, not yet initialised."""
        return DcganDiscriminator(self.task.shape, self.task.classes, self.width)

    def adam(self, net: nn.Module, state: State | None) -> torch.optim.Adam:
        """A network's Adam at this run's rate, its averages new or as they were."""
        return gan.adam(net, self.lr, (self.beta1, 0.999), state)

    def reply_spec(self) -> Mapping[str, PartSpec]:
        c, h, w = self.task.shape
        one = PartSpec("sum", "float32", 1)
        parts = {
            "gradient": PartSpec(
                "each", self.wire_dtype, self.batch_size * c * h * w, shape=(self.batch_size, c, h, w)
            ),
            "metric.loss_g": one,
            "metric.loss_d": one,
        }
        with torch.device("meta"):
            d = vector_size(self.discriminator())
        return parts | ({"discriminator": PartSpec("relay", self.wire_dtype, d)} if self.swap_every else {})

    # -- server ---------------------------------------------------------------------------------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:  # noqa: ARG002
        """G alone: each client begins with a D of its own."""
        first = {"generator": to_vector(initialise(self.generator(), rng.child("generator").torch()))}
        return {"rounds": 0, **gan.init_or_warm_start(start, first), "adam": start["adam"] if start else None}

    def start_round(self, server: State, clients: Sequence[str], rng: Rng) -> tuple[State, Sequence[str]]:
        """Make X^(1), ..., X^(k) and, where a swap is due, draw one cycle through all clients.

        Beyond what `finish_round` returns, the state holds k batches, k gradients and two names a client while a round
        is open; of the batches only the seed is needed to make them again.
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
        opened = {
            "rounds": t,
            "seed": seed,
            "fakes": batches,
            "turn": {client: n for n, client in enumerate(clients)},
            "heir": dict(zip(cycle, cycle[1:] + cycle[:1], strict=True)),
            "gradients": [np.zeros((self.batch_size, *self.task.shape)) for _ in range(k)],
        }
        return {**server, **opened}, clients

    def noise(self, seed: int, j: int) -> gan.Batch:
        """Z_j and its labels, the same whenever they are asked for."""
        return gan.latent(self.batch_size, self.latent_dim, self.task, Rng((seed,)).child("batch", j).torch())

    def split(self, server: State, client: str) -> tuple[int, int]:
        """Which batches client n gets: X_g = X^(n mod k), X_d = X^((n+1) mod k)."""
        n, k = server["turn"][client], len(server["fakes"])
        return n % k, (n + 1) % k

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """X_g and X_d, once where they are the same (k = 1), and the name of the client that is to have its D."""
        g, d = self.split(server, client)
        parts: dict[str, tuple[str, Array]] = {}
        for name, j in {"g": g, "d": d}.items() if g != d else [("g", g)]:
            x, y = server["fakes"][j]["x"], server["fakes"][j]["y"]
            parts |= fakes.parts(name, x, y, self.fake_dtype, self.task.classes)
        if client in server["heir"]:
            parts["heir"] = ("bytes", np.frombuffer(server["heir"][client].encode(), np.uint8))
        return Broadcast(parts)

    def receive(self, server: State, client: str, parts: Mapping[str, Array]) -> State:
        """Add F_n to those for the same batch: memory is that of k batches, however many clients there are."""
        j, _ = self.split(server, client)
        gradients = list(server["gradients"])
        gradients[j] = gradients[j] + parts["gradient"].reshape(gradients[j].shape)
        return {**server, "gradients": gradients}

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:  # noqa: ARG002
        """Δw = 1/(N b) Σ_n Σ_i e_i ∂x_i/∂w over the pictures x_i of all X_g, then Adam."""
        G = from_vector(self.generator(), server["generator"]).to(self.task.device).train()
        optimizer = self.adam(G, server["adam"])
        for j, total in enumerate(server["gradients"]):
            mean = torch.from_numpy((total / (sums.clients * self.batch_size)).astype(np.float32)).to(self.task.device)
            G(*self.noise(server["seed"], j)).backward(mean)  # the same fakes once more, now with their history
        optimizer.step()
        return {"rounds": server["rounds"], "generator": to_vector(G), "adam": optimizer.state_dict()["state"]}

    def export_models(self, server: State, client: State | None = None) -> Mapping[str, Model]:  # noqa: ARG002
        """The server's generator; clients have none."""
        return gan.product(server["generator"], self.task, self.width, self.latent_dim)

    # -- client ---------------------------------------------------------------------------------------------------

    def client_init(self, client: str, rng: Rng) -> State:  # noqa: ARG002
        """A discriminator of its own."""
        return {"discriminator": to_vector(initialise(self.discriminator(), rng.torch())), "adam": None}

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Algorithm 1, worker side, with the D that came in, where one did and can be used; else with its own.

        A D from another client may be such that no step on it is finite. Last of all comes a new one.
        """
        came = list(message.relayed.values())[-1:]  # rarely several, where this client was away: the last will do
        for begun in (*({"discriminator": D, "adam": None} for D in came), state):
            after, reply = self.trained(begun, message, data, rng)
            if finite(after) and is_sendable(*reply.parts.values(), *reply.relay.values()):
                return after, reply
        return self.trained(self.client_init("", rng.child("again")), message, data, rng)

    def trained(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """L steps of D_n on X_r and X_d, then F_n on X_g."""
        D = from_vector(self.discriminator(), state["discriminator"]).to(self.task.device).train()
        optimizer = self.adam(D, state["adam"])
        x_r, y_r = self.sample(data, rng)
        x_g, y_g = self.unpack(message, "g")
        x_d, y_d = self.unpack(message, "d") if "x_d" in message.parts else (x_g, y_g)
        for _ in range(self.d_steps):
            loss_d = F.softplus(-D(x_r, y_r)).mean() + F.softplus(D(x_d, y_d)).mean()  # J_disc
            optimizer.zero_grad()
            loss_d.backward()
            optimizer.step()

        says = D(x_g.requires_grad_(), y_g)
        loss_g = F.softplus(-says) if self.g_loss == "nonsaturating" else -F.softplus(says)
        (e,) = torch.autograd.grad(loss_g.sum(), x_g)  # F_n, not yet over b: too small for float16
        parts = {
            "gradient": e.cpu().numpy(),
            "metric.loss_g": loss_g.detach().mean().reshape(1).cpu().numpy(),
            "metric.loss_d": loss_d.detach().reshape(1).cpu().numpy(),
        }
        vector, relay = to_vector(D), {}
        if "heir" in message.parts:  # it goes on with its own D until another comes
            relay[bytes(message.parts["heir"]).decode(), "discriminator"] = vector
        return {"discriminator": vector, "adam": optimizer.state_dict()["state"]}, Reply(parts, relay)

    def sample(self, data: Images, rng: Rng) -> gan.Batch:
        """X_r: b of the client's own pictures, or all where it has fewer."""
        pick = rng.child("real").numpy().choice(len(data), min(self.batch_size, len(data)), replace=False)
        return gan.pictures(data, pick, self.task)

    def unpack(self, message: ServerMessage, name: str) -> gan.Batch:
        """A batch of fakes and its labels, as they were sent."""
        return fakes.unpack(
            message.parts[f"x_{name}"], message.parts.get(f"y_{name}"), self.fake_dtype, self.task.device
        )
