"""What PRISM and `moments` share: a frozen random network, scores for a mask over it, and the model that comes out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field
from torch import Tensor

from vitrail.methods.base import Model
from vitrail.methods.prism.loss import Loss
from vitrail.methods.private import PrivateMethod
from vitrail.models.kinds.seeded import fewest_coded_bytes
from vitrail.nets import generators
from vitrail.nets.features import choose_features
from vitrail.nets.masked import Masked, sample_mask
from vitrail.nets.supermask import encode_mask
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire import scores
from vitrail.wire.entropy import encode_values
from vitrail.wire.scores import Scores


@dataclass(frozen=True)
class MaskSettings(PrivateMethod):
    """Settings of methods that find a mask."""

    generator: Annotated[
        str, AfterValidator(generators.GENERATORS.check), Field(description="network; the paper's is resnet")
    ] = "small"
    width: Annotated[float, Field(gt=0, le=8, description="times so many channels in the generator")] = 1.0
    features: Annotated[str, Field(description="feature network ψ: auto, vitrail-fashion, vitrail-cifar, vgg19")] = (
        "auto"
    )
    layers: Annotated[str, Field(description="layers of ψ: all, or numbers from 0 such as 1,3,7")] = "all"
    local_steps: Annotated[int, Field(ge=1, description="iterations per client and round (paper: 100)")] = 20
    batch_size: Annotated[int, Field(ge=2, description="pictures generated per iteration (paper: 64)")] = 50
    lr: Annotated[float, Field(gt=0, le=1e3, description="Adam's learning rate on the scores (paper: 0.1)")] = 0.3
    schedule: Annotated[Literal["cosine", "constant"], Field(description="the learning rate over the rounds")] = (
        "cosine"
    )
    smoothing: Annotated[float, Field(gt=0, le=1, description="weight of a batch in the exponential average")] = 0.1
    score_init: Annotated[
        Literal["normal", "uniform"], Field(description="first scores: N(0, score_std²), or θ uniform")
    ] = "normal"
    score_std: Annotated[float, Field(gt=0, le=1e3, description="spread of normal first scores (paper: 1)")] = 3.0
    straight_through: Annotated[
        Literal["identity", "theta"], Field(description="straight-through gradient: plain, or times θ")
    ] = "identity"
    final_mask: Annotated[
        Literal["mode", "sample"],
        Field(description="the stored mask: θ > 1/2, or drawn from θ as in the paper"),
    ] = "mode"

    @property
    def feature_network(self) -> str:
        return self.features

    def auto_settings(self, data: str) -> Mapping[str, Any]:
        return {"features": choose_features(data)} if self.features == "auto" else {}

    def net(self, seed: int) -> Masked:
        """The frozen network that everybody builds from the seed."""
        g = generators.build(self.generator, self.task.shape, self.task.classes, self.width)
        return Masked(g, seed).to(self.task.device)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Elements of the mask, layer by layer."""
        with torch.device("meta"):
            g = generators.build(self.generator, self.task.shape, self.task.classes, self.width)
        return tuple(p.numel() for p in g.parameters())

    @property
    def size(self) -> int:
        """Elements of the mask."""
        return sum(self.sizes)

    def first_scores(self, seed: int) -> Scores:
        """s_0, before the first round."""
        return scores.first(seed, self.size, self.score_init, self.score_std)

    def rate(self, t: int) -> float:
        """The learning rate of round t."""
        if self.schedule == "constant":
            return self.lr
        return self.lr * (0.5 + 0.5 * math.cos(math.pi * t / self.task.rounds))

    def adam(self, s: Tensor, t: int, kept: State) -> torch.optim.Adam:
        """The optimiser of the scores in round t; its averages outlive the round."""
        optimizer = torch.optim.Adam([s], lr=self.rate(t), betas=(0.5, 0.999), fused=True)
        if kept:
            optimizer.state[s] = {k: v.clone() for k, v in kept.items()}
        return optimizer

    def descend(self, net: Masked, s: Tensor, loss: Loss, optimizer: torch.optim.Adam, draw: torch.Generator) -> float:
        """Local iterations: masks are drawn, fakes made and compared, scores follow; gives the mean loss."""
        device, losses = self.task.device, []
        every = torch.arange(self.batch_size, device=device)
        for i in range(self.local_steps):
            z = torch.randn(self.batch_size, net.z, generator=draw).to(device)
            y = loss.present[(i * self.batch_size + every) % len(loss.present)]  # all its classes in turn
            mask = sample_mask(s, draw, self.straight_through == "theta")  # M ~ Bern(θ)
            fakes = net(mask, z, y if self.task.classes else None)  # W⊙M makes fakes
            batch_loss = loss(fakes, y)  # Eq. 1
            optimizer.zero_grad()
            batch_loss.backward()
            optimizer.step()
            losses.append(batch_loss.detach())
        return torch.stack(losses).mean().item()

    def models(self, seed: int, s: Scores, trained: bool) -> Mapping[str, Model]:
        """The supermask M* over W, a seed and a coded mask; and θ, from which papers draw a mask a batch."""
        mask: NDArray[np.bool_] = s > 0
        if self.final_mask == "sample":
            draw = Rng((seed,)).child("final mask").numpy()
            mask = draw.random(self.size) < scores.theta(s)
        about: dict[str, Any] = {"generator": self.generator, "shape": list(self.task.shape)}
        about |= {"classes": self.task.classes, "width": self.width, "seed": seed}
        net, least = self.net(seed), fewest_coded_bytes(about)
        coded = encode_mask(net, mask)
        coded = coded if len(coded) >= least else encode_mask(net, mask, packed=True)
        products = {"generator": Model("masked", {**about, "mask": coded})}
        if trained:
            coded = encode_values(s)
            coded = coded if len(coded) >= least else encode_values(s, packed=True)
            products["ensemble"] = Model("ensemble", {**about, "scores": coded})
        return products
