"""Partial federation: of some networks the server averages the parameters, the others stay each client's own.

The server's half of PaDPaF (Almansoori, Horváth, Takáč; 2024; Algorithm 1), and what a client opens and keeps. `shared`
makes baselines of it with the same networks and steps: "everything" is FedAvg, "nothing" is training alone. `prox` adds
FedProx's μ/2 ‖θ - θ_0‖² on what is federated (Li et al.; MLSys 2020).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.base import (
    BaseMethod,
    Broadcast,
    Model,
    PartSpec,
    Reply,
    ServerMessage,
    Sums,
    Task,
    clip_weights,
    is_sendable,
)
from vitrail.methods.fedgan import UNIT
from vitrail.nets.content_style import Content, Style, initialise
from vitrail.nets.flat import from_vector, load_trainable, to_vector, trainable_mask
from vitrail.nets.spectral_discriminator import warm_up_spectral_norm
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, finite
from vitrail.wire.codecs import Array


@dataclass(frozen=True)
class PartiallyFederated(BaseMethod):
    """The settings of every method with content and style."""

    task: Task
    shared: Annotated[
        Literal["content", "everything", "nothing"],
        Field(description="what is federated: content (PaDPaF), everything (FedAvg), nothing (each client alone)"),
    ] = "content"
    prox_mu: Annotated[
        float, Field(ge=0, le=1e6, description="μ of FedProx: what is federated is held to the server's")
    ] = 0.0
    width: Annotated[int, Field(ge=4, le=512, description="channels of all layers; MNIST 64, CelebA 128")] = 32
    latent_dim: Annotated[
        int, Field(ge=2, le=1024, description="dimensions of z^c, and of z^s; MNIST 128, CelebA 256")
    ] = 64
    style_depth: Annotated[int, Field(ge=1, le=16, description="layers of the style vectorizer; published code: 8")] = 4
    lam: Annotated[float, Field(ge=0, le=1e6, description="λ: weight of Barlow Twins, of content and of style")] = 0.1
    local_epochs: Annotated[float, Field(gt=0, le=1e4, description="passes over a client's pictures in a round")] = 0.5
    loopless: Annotated[bool, Field(description="stop after each step by chance: local_epochs on average")] = False
    batch_size: Annotated[int, Field(ge=2, description="pictures in a step, and fakes")] = 64
    lr: Annotated[float, Field(gt=0, le=1e3, description="clients' Adam: G's rate; D's is twice that")] = 1e-3
    server_lr: Annotated[
        float, Field(gt=0, le=1e3, description="rate of the server's Adam, where that is its step")
    ] = 0.01
    server_opt: Annotated[
        Literal["average", "adam"],
        Field(description="the server's step: FedAvg's average, or the paper's Adam, for rounds of many local steps"),
    ] = "average"
    lr_decay: Annotated[float, Field(gt=0, le=1, description="all rates fall by this factor each round")] = 0.99
    label_maps: Annotated[
        Literal["private", "federated"],
        Field(description="the label's half of conditional BatchNorm: each client's own, or shared like content"),
    ] = "private"
    weighting: Annotated[Literal["examples", "uniform"], Field(description="how much a client counts")] = "examples"
    wire_dtype: Annotated[Literal["float32", "float16"], Field(description="how weights travel")] = "float32"

    betas: ClassVar[tuple[float, float]] = (0.5, 0.9)
    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 60}
    of_content: ClassVar[tuple[str, ...]] = ("generator", "discriminator")
    of_style: ClassVar[tuple[str, ...]] = ("style", "style_discriminator")
    metrics: ClassVar[tuple[str, ...]] = ("loss_d", "loss_g", "barlow_twins")

    # -- what each method fills in --------------------------------------------------------------------------------

    def content(self) -> gan.Nets:
        """The networks of content, not yet initialised; `generator` is G^c."""
        raise NotImplementedError

    def style(self, content: nn.Module) -> gan.Nets:
        """The networks of style to a G^c; `style` is G^s_i with its conditional BatchNorm."""
        raise NotImplementedError

    def learn(
        self, nets: gan.Nets, state: State, pull: ProximalTerm, t: int, data: Images, rng: Rng
    ) -> tuple[State, NDArray[Any]]:
        """Train all networks in round t; return what to keep in the client's state beside them, and the `metrics`."""
        raise NotImplementedError

    # -- both -----------------------------------------------------------------------------------------------------

    def generator(self) -> Content:
        """G^c, not yet initialised."""
        t = self.task
        return Content(t.shape, t.classes, self.width, self.latent_dim, self.label_maps == "federated")

    def networks(self) -> gan.Nets:
        """All networks of a client."""
        content = self.content()
        return {**content, **self.style(content["generator"])}

    @property
    def federated(self) -> tuple[str, ...]:
        """The networks of which parameters travel: θ^fed."""
        return {"content": self.of_content, "everything": self.of_content + self.of_style, "nothing": ()}[self.shared]

    def reply_spec(self) -> Mapping[str, PartSpec]:
        with torch.device("meta"):
            nets = self.networks()
        one = PartSpec("sum", "float32", 1)
        parts = {
            name: PartSpec("sum", self.wire_dtype, int(trainable_mask(nets[name]).sum()), over="weight")
            for name in self.federated
        }
        metrics = {f"metric.{name}": one for name in self.metrics}
        return {**parts, "weight": PartSpec("sum", "float32", 1, least=0), **metrics}

    # -- server ---------------------------------------------------------------------------------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:  # noqa: ARG002
        """θ_0^fed, and the seed from which every client draws the same start of all else: line 3, θ_i := θ_0."""
        nets = self.networks()
        names = self.federated or ("generator",)  # alone, clients train; the server's generator stays as it began
        first = {n: initialise(nets[n], rng.child(n).torch()) for n in names}
        vectors = gan.init_or_warm_start(
            start, {name: to_vector(net)[trainable_mask(net)] for name, net in first.items()}
        )
        seed = np.frombuffer(rng.child("style").seed().to_bytes(8, "little"), np.uint8)
        return {
            **vectors,
            "adam": dict.fromkeys(self.federated),
            "rounds": 0,
            "seed": seed if start is None else start["seed"],
        }

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """Line 18: θ_i^fed ← θ_0^fed."""
        told = {name: (self.wire_dtype, server[name]) for name in self.federated}
        return Broadcast({**told, "seed": ("bytes", server["seed"])})

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:  # noqa: ARG002
        """Line 17: θ_0 ← OPT_0(mean of Δ_i; θ_0, η_0)."""
        after: State = {**server, "adam": {}, "rounds": server["rounds"] + 1}
        for name in self.federated:
            with np.errstate(divide="ignore", invalid="ignore"):  # weights of nothing make a round that is not closed
                mean = (sums.values[name] / sums.values["weight"][0]).astype(np.float32)
            theta = nn.ParameterList([torch.from_numpy(np.array(server[name], np.float32))])
            theta[0].grad = torch.from_numpy(mean)
            eta_0 = self.server_lr * self.lr_decay ** server["rounds"]
            optimizer = (
                gan.adam(theta, eta_0, self.betas, server["adam"][name])
                if self.server_opt == "adam"
                else torch.optim.SGD(theta.parameters(), 1.0)
            )
            optimizer.step()
            after[name] = clip_weights(theta[0].detach().numpy())
            after["adam"][name] = optimizer.state_dict()["state"]
        return after

    def export_models(self, server: State, client: State | None = None) -> Mapping[str, Model]:
        """A client's own generator; where the server has no style, its generator is content with γ = 1 and β = 0."""
        has: State = {"generator": server["generator"], **(client or {}), **{n: server[n] for n in self.federated}}
        content = self.generator()
        tree = {"shape": list(self.task.shape), "classes": self.task.classes, "width": self.width}
        tree |= {"latent": self.latent_dim, "style_depth": self.style_depth, "label_maps": self.label_maps}
        tree["content"] = from_vector(content, has["generator"]).state_dict()
        if "style" in has:
            tree["style"] = from_vector(Style(content, self.style_depth), has["style"]).state_dict()
        return {"generator": Model("padpaf", tree)}

    # -- client ---------------------------------------------------------------------------------------------------

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Lines 7 to 15: train, then send Δ_i of what is federated, and keep the rest."""
        told = {name: message.parts[name] for name in self.federated}
        nets = self.opened(state, told, message)
        kept, measured = self.learn(nets, state, ProximalTerm(self.prox_mu, told), message.round, data, rng)
        n = np.float32(len(data) / UNIT if self.weighting == "examples" else 1.0)
        parts: dict[str, NDArray[Any]] = {"weight": np.array([n])}
        for name, theta in told.items():
            parts[name] = n * (theta.astype(np.float32) - to_vector(nets[name])[trainable_mask(nets[name])])  # line 11
        parts |= {f"metric.{k}": v for k, v in zip(self.metrics, measured[:, None], strict=True)}
        after: State = {**closed(nets, self.federated), **kept}
        if not finite(after) or not is_sendable(
            *(parts[name] for name in told)
        ):  # no change: the client stays as it was
            return state, Reply(parts | {name: np.zeros_like(parts[name]) for name in told})
        return after, Reply(parts)

    def opened(self, state: State, told: Mapping[str, Array], message: ServerMessage) -> gan.Nets:
        """A client's networks: as it was told, as it kept them, or, the first time, from the seed that all know."""
        nets = self.networks()
        for name, net in nets.items():
            if name in told:
                load_trainable(net, told[name])
            elif state:
                from_vector(net, state[name])
            else:
                initialise(net, Rng((message.parts["seed"].tobytes(),)).child(name).torch())
        if not state:
            warm_up_spectral_norm(nn.ModuleList(nets.values()))
        elif "power_iteration" in state:
            at = 0
            for name in told:
                vector, own = to_vector(nets[name]), ~trainable_mask(nets[name])
                vector[own] = state["power_iteration"][at : at + own.sum()]
                from_vector(nets[name], vector)
                at += int(own.sum())
        return nets


def closed(nets: gan.Nets, federated: Iterable[str]) -> State:
    """What a client keeps of its networks: all of the private ones, and of the others what is no parameter."""
    own = np.concatenate([np.empty(0, np.float32), *(to_vector(nets[n])[~trainable_mask(nets[n])] for n in federated)])
    private: State = {name: to_vector(net) for name, net in nets.items() if name not in federated}
    return {**private, "power_iteration": own} if len(own) else private


@dataclass(frozen=True)
class ProximalTerm:
    """μ/2 ‖θ - θ_0‖² over the parameters of some networks: FedProx's term, and Ditto's."""

    mu: float
    start: Mapping[str, Array]  # θ_0 of each network, as one vector

    def __call__(self, nets: Mapping[str, nn.Module]) -> Tensor | float:
        """The term of those of the networks that have a θ_0."""
        apart = []
        for name in (n for n in nets if self.mu and n in self.start):
            weights = list(nets[name].parameters())
            at = torch.from_numpy(self.start[name].astype(np.float32)).to(weights[0].device)
            pieces = at.split([p.numel() for p in weights])
            apart += [(p - q.view_as(p)).square().sum() for p, q in zip(weights, pieces, strict=True)]
        return self.mu / 2 * torch.stack(apart).sum() if apart else 0.0
