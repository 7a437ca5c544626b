"""The settings that psfedgan and fullgan share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from vitrail.methods.private import PrivateMethod


@dataclass(frozen=True)
class LocalGanSettings(PrivateMethod):
    """What a run may choose in which every client has a GAN of its own."""

    privacy: Annotated[
        Literal["none", "dp-sgd"], Field(description="dp-sgd: noise on D's gradients; all else follows from D")
    ] = "none"
    steps_per_message: Annotated[int, Field(ge=1, le=1000, description="steps of G, and so D's, in one message")] = 10
    d_steps: Annotated[int, Field(ge=1, description="iterations of D in a step")] = 1
    batch_size: Annotated[
        int, Field(ge=2, description="pictures, and fakes, in a step; dp-sgd: fakes, and what sums are divided by")
    ] = 16
    width: Annotated[int, Field(ge=4, le=512, description="G's channels in the layer nearest to the picture")] = 16
    latent_dim: Annotated[int, Field(ge=1, le=4096, description="noise dimensions")] = 100
    d_architecture: Annotated[
        Literal["dcgan", "dense"], Field(description="D's architecture; psfedgan: a client may have its own (d_own)")
    ] = "dcgan"
    d_width: Annotated[
        int, Field(ge=1, le=512, description="D's width; psfedgan: a client may have its own (d_own)")
    ] = 16
    lr: Annotated[float, Field(gt=0, le=1e3, description="G's learning rate, by Adam")] = 2e-3
    d_lr: Annotated[float, Field(gt=0, le=1e3, description="D's learning rate, by Adam")] = 1e-3
    beta1: Annotated[float, Field(ge=0, lt=1, description="Adam's first average; DCGAN's 0.5")] = 0.5
    g_loss: Annotated[Literal["nonsaturating", "minimax"], Field(description="the generator's loss")] = "nonsaturating"
    label_sets: Annotated[
        Literal["auto", "declared", "all", "public"],
        Field(
            description="l_t from the labels that a client says it has, or from all; auto: all with privacy; "
            "public: said even then"
        ),
    ] = "auto"
    ema_decay: Annotated[
        float,
        Field(ge=0, lt=1, description="the server uses a running mean of G's weights; how much it keeps at each step"),
    ] = 0.99
    classifier_rounds: Annotated[
        int, Field(ge=0, description="rounds at the end that train the server's classifier; at most half of all")
    ] = 10
    classifier_steps: Annotated[int, Field(ge=1, description="the classifier's steps in such a round")] = 120
    classifier_batch_size: Annotated[int, Field(ge=2, description="pictures in a step of the classifier")] = 64
    real_fraction: Annotated[
        float, Field(ge=0, le=1, description="share of real pictures in the classifier's batch, where there are any")
    ] = 0.5
    max_grad_norm: Annotated[
        float, Field(ge=1e-6, le=1e4, description="dp-sgd: largest norm of one picture's gradient (C)")
    ] = 1.0
    sample_rate: Annotated[
        float, Field(gt=0, le=1, description="dp-sgd: chance of a picture to be in a step; public, like batch")
    ] = 0.05

    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 130, "server_fraction": 0.01}
    mechanisms: ClassVar[tuple[str, ...]] = ("dp-sgd",)
