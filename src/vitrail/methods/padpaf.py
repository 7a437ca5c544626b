"""PaDPaF: Partial Disentanglement with Partially-Federated GANs.

Almansoori, Horváth, Takáč; 2024. A picture is x = G^c(z^c, G^s_i(z^s), y). Content is federated: the generator's
convolutions G^c and the content discriminator D^c. Style is client i's own: the vectorizer G^s_i, the conditional
BatchNorm through which its style enters G^c, and the style discriminator D^s_i. Nothing of it is declared, so nothing
of it leaves. Barlow Twins keeps D^c's features alike where z^c is, and D^s's where z^s is (Eq. 14).

What differs from the paper: the server weighs clients by their pictures (weights="uniform" is its plain mean); the
count of steps after which it is G's turn goes on over rounds, or a client with few pictures would never train G; Barlow
Twins' features are centred; BatchNorm's statistics are a batch's in training and come from noise afterwards, so they
are in no message; the noise that its code adds to pictures and channels is left out. loss="wasserstein" is the
paper's, "hinge" its code's. With label_maps="private", as the paper has it, what a label means to G is each client's
own too: the server's generator then draws without regard to labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import nn

from vitrail.data.pictures import Pictures
from vitrail.methods import gan
from vitrail.methods.base import Declared, Incoming, Model, Outgoing, Reply, Simple, Sums, Task
from vitrail.methods.fedgan import UNIT
from vitrail.methods.padpaf_losses import Form
from vitrail.methods.padpaf_training import Networks, train
from vitrail.nets.flat import from_vector, learned, to_vector
from vitrail.nets.padpaf import Content, Style, initialise
from vitrail.nets.padpaf_discriminator import Discriminator, settle
from vitrail.rng import Rng
from vitrail.state import State

FEDERATED = ("generator", "discriminator")  # θ^fed: the parameters of G^c and of D^c


@dataclass(frozen=True)
class PaDPaF(Simple):
    """PaDPaF's settings; the paper's for MNIST are width=64, latent=128, style_depth=8, rounds=300."""

    task: Task
    width: Annotated[int, Field(ge=4, le=512, description="channels of G's and D's layers; MNIST 64, CelebA 128")] = 32
    latent: Annotated[int, Field(ge=2, le=1024, description="dimensions of z^c, and of z^s; MNIST 128, CelebA 256")] = (
        64
    )
    style_depth: Annotated[int, Field(ge=1, le=16, description="layers of the style vectorizer; published code: 8")] = 4
    loss: Annotated[Form, Field(description="the GAN's loss: hinge (published code), wasserstein (the paper)")] = (
        "hinge"
    )
    lam: Annotated[float, Field(ge=0, description="λ: weight of Barlow Twins, of content and of style")] = 0.1
    d_steps: Annotated[int, Field(ge=1, description="steps of D to one of G (T_D)")] = 3
    local_epochs: Annotated[float, Field(gt=0, description="passes over a client's pictures in a round")] = 0.5
    loopless: Annotated[bool, Field(description="stop after each step by chance: local_epochs on average")] = False
    batch: Annotated[int, Field(ge=2, description="pictures in a step, and fakes")] = 64
    lr: Annotated[float, Field(gt=0, description="clients' Adam: G's rate; D's is twice that")] = 1e-3
    server_lr: Annotated[float, Field(gt=0, description="rate of the server's Adam on the mean pseudo-gradient")] = 0.01
    server_opt: Annotated[Literal["adam", "average"], Field(description="the server's step; average: FedAvg's")] = (
        "adam"
    )
    decay: Annotated[float, Field(gt=0, le=1, description="all rates fall by this factor each round")] = 0.99
    label_maps: Annotated[
        Literal["private", "federated"],
        Field(description="the label's half of conditional BatchNorm: each client's own, or shared like content"),
    ] = "private"
    fake_labels: Annotated[Literal["all", "own"], Field(description="labels of fakes: all, or those of the client")] = (
        "all"
    )
    weights: Annotated[Literal["examples", "uniform"], Field(description="how much a client counts")] = "examples"
    wire: Annotated[Literal["float32", "float16"], Field(description="how weights travel")] = "float32"

    betas: ClassVar[tuple[float, float]] = (0.5, 0.9)
    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 60}

    def content(self) -> gan.Nets:
        """G^c and D^c, not yet initialised: the networks of which parameters are federated."""
        t = self.task
        G = Content(t.shape, t.classes, self.width, self.latent, self.label_maps == "federated")
        return {"generator": G, "discriminator": Discriminator(t.shape, t.classes, self.width)}

    def style(self, content: nn.Module) -> gan.Nets:
        """G^s_i with its conditional BatchNorm, and D^s_i: the networks that are private."""
        assert isinstance(content, Content)  # noqa: S101
        return {
            "style": Style(content, self.style_depth),
            "style_discriminator": Discriminator(self.task.shape, 0, self.width),
        }

    def declares(self) -> Mapping[str, Declared]:
        with torch.device("meta"):
            sizes = {name: int(learned(net).sum()) for name, net in self.content().items()}
        one = Declared("sum", "float32", 1)
        parts = {name: Declared("sum", self.wire, size) for name, size in sizes.items()}
        metrics = {f"metric.{name}": one for name in ("loss_d", "loss_g", "barlow_twins")}
        return {**parts, "weight": Declared("sum", "float32", 1, least=0), **metrics}

    # -- server ---------------------------------------------------------------------------------------------------

    def server_init(self, rng: Rng, data: Pictures | None = None, start: State | None = None) -> State:  # noqa: ARG002
        """θ_0^fed, and the seed from which every client draws the same first style: line 3, θ_i := θ_0."""
        nets = {name: initialise(net, rng.child(name).torch()) for name, net in self.content().items()}
        first = gan.begun(start, {name: to_vector(net)[learned(net)] for name, net in nets.items()})
        seed = np.frombuffer(rng.child("style").seed().to_bytes(8, "little"), np.uint8)
        return {
            **first,
            "adam": dict.fromkeys(FEDERATED),
            "rounds": 0,
            "seed": seed if start is None else start["seed"],
        }

    def broadcast(self, server: State, client: str, full: bool) -> Outgoing:  # noqa: ARG002
        """Line 18: θ_i^fed ← θ_0^fed."""
        told = {name: (self.wire, server[name]) for name in FEDERATED}
        return Outgoing({**told, "seed": ("bytes", server["seed"])})

    def close_round(self, server: State, sums: Sums, rng: Rng) -> State:  # noqa: ARG002
        """Line 17: θ_0 ← OPT_0(mean of Δ_i; θ_0, η_0)."""
        after: State = {**server, "adam": {}, "rounds": server["rounds"] + 1}
        for name in FEDERATED:
            with np.errstate(divide="ignore", invalid="ignore"):  # weights of nothing make a round that is not closed
                mean = (sums.values[name] / sums.values["weight"][0]).astype(np.float32)
            theta = nn.ParameterList([torch.from_numpy(np.array(server[name], np.float32))])
            theta[0].grad = torch.from_numpy(mean)
            eta_0 = self.server_lr * self.decay ** server["rounds"]
            optimizer = (
                gan.adam(theta, eta_0, self.betas, server["adam"][name])
                if self.server_opt == "adam"
                else torch.optim.SGD(theta.parameters(), 1.0)
            )
            optimizer.step()
            after[name] = theta[0].detach().numpy()
            after["adam"][name] = optimizer.state_dict()["state"]
        return after

    def products(self, server: State, client: State | None = None) -> Mapping[str, Model]:
        """A client's own generator; the server has no style, so its generator is content with γ = 1 and β = 0."""
        content = self.content()["generator"]
        tree = {"shape": list(self.task.shape), "classes": self.task.classes, "width": self.width}
        tree |= {"latent": self.latent, "style_depth": self.style_depth, "label_maps": self.label_maps}
        tree["content"] = from_vector(content, server["generator"]).state_dict()
        if client is not None:
            tree["style"] = from_vector(self.style(content)["style"], client["style"]).state_dict()
        return {"generator": Model("padpaf", tree)}

    # -- client ---------------------------------------------------------------------------------------------------

    def client_round(self, state: State, message: Incoming, data: Pictures, rng: Rng) -> tuple[State, Reply]:
        """Lines 7 to 15: train, then send Δ_i of what is federated, and keep the rest."""
        content = self.content()
        style = self.style(content["generator"])
        for name, net in content.items():
            vector = to_vector(net)
            vector[learned(net)] = message.parts[name]
            if state and name == "discriminator":
                vector[~learned(net)] = state["power_iteration"]
            from_vector(net, vector)
        for name, net in style.items():
            if state:
                from_vector(net, state[name])
            else:
                initialise(net, Rng((message.parts["seed"].tobytes(),)).child(name).torch())
        model = Networks(content, style, self.task.device)
        if not state:
            settle(model.D)
        eta_i = self.lr * self.decay**message.round
        kept = state.get("optimizers", {"G": None, "D": None})
        optimizers: gan.Optimizers = {
            "G": gan.adam(model.G, eta_i, self.betas, kept["G"]),
            "D": gan.adam(model.D, 2 * eta_i, self.betas, kept["D"]),
        }
        t, losses = train(self, model, optimizers, data, state.get("t", 0), rng)

        n = np.float32(len(data) / UNIT if self.weights == "examples" else 1.0)
        parts: dict[str, NDArray[Any]] = {"weight": np.array([n])}
        for name, net in content.items():
            parts[name] = n * (message.parts[name].astype(np.float32) - to_vector(net)[learned(net)])  # line 11
        parts |= {f"metric.{k}": v for k, v in zip(("loss_d", "loss_g", "barlow_twins"), losses[:, None], strict=True)}
        D = content["discriminator"]
        private: State = {name: to_vector(net) for name, net in style.items()}
        private |= {"power_iteration": to_vector(D)[~learned(D)], "t": t}
        private["optimizers"] = {name: o.state_dict()["state"] for name, o in optimizers.items()}
        return private, Reply(parts)
