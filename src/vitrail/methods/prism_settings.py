"""PRISM's settings; methods/prism.py says which of the paper's values they keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from vitrail.methods.base import Simple, Task


@dataclass(frozen=True)
class PrismSettings(Simple):
    """What a run of PRISM may choose."""

    task: Task
    generator: Annotated[
        Literal["small", "resnet", "sngan", "dcgan"], Field(description="network; the paper's is resnet")
    ] = "small"
    width: Annotated[float, Field(gt=0, le=8, description="times so many channels in the generator")] = 1.0
    loss: Annotated[
        Literal["moments", "gan"], Field(description="feature moments, or a discriminator (the paper's ablation)")
    ] = "moments"
    features: Annotated[str, Field(description="feature network ψ: auto, vitrail-fashion, vitrail-cifar, vgg19")] = (
        "auto"
    )
    layers: Annotated[str, Field(description="layers of ψ: all, or numbers from 0 such as 1,3,7")] = "all"
    local_steps: Annotated[int, Field(ge=1, description="iterations per client and round (paper: 100)")] = 20
    batch: Annotated[int, Field(ge=2, description="pictures generated per iteration (paper: 64)")] = 50
    lr: Annotated[float, Field(gt=0, description="Adam's learning rate on the scores (paper: 0.1)")] = 0.3
    schedule: Annotated[Literal["cosine", "constant"], Field(description="the learning rate over the rounds")] = (
        "cosine"
    )
    average: Annotated[
        Literal["exponential", "adam", "none"],
        Field(description="how the fakes' moments are averaged over batches: adam is the paper's AMA"),
    ] = "exponential"
    smoothing: Annotated[float, Field(gt=0, le=1, description="weight of a batch in the exponential average")] = 0.1
    ama_lr: Annotated[float, Field(gt=0, description="rate of the paper's AMA (paper: 0.005)")] = 0.005
    score_init: Annotated[
        Literal["normal", "uniform"], Field(description="first scores: N(0, score_std²), or θ uniform")
    ] = "normal"
    score_std: Annotated[float, Field(gt=0, description="spread of normal first scores (paper: 1)")] = 3.0
    clamp: Annotated[float, Field(ge=0.001, lt=0.5, description="averaged θ is kept within [clamp, 1 - clamp]")] = 0.02
    gradient: Annotated[
        Literal["identity", "theta"], Field(description="straight-through gradient: plain, or times θ")
    ] = "identity"
    mada: Annotated[
        Literal["off", "sampled", "expected"],
        Field(description="move scores by λ towards the average, λ the distance of masks (paper: sampled)"),
    ] = "off"
    alpha: Annotated[float, Field(ge=0, le=100, description="per cent of layers that send scores (PRISM-α)")] = 0.0
    path: Annotated[Literal["backward", "forward"], Field(description="score layers: the last, or the first")] = (
        "backward"
    )
    score_form: Annotated[
        Literal["s", "theta"], Field(description="score layers send s (section 4.2) or θ (Algorithm 2)")
    ] = "s"
    score_codec: Annotated[Literal["float16", "float32"], Field(description="how score layers travel up")] = "float16"
    noise: Annotated[
        float, Field(ge=0, description="σ of Algorithm 1's noise on θ before sampling; by itself no claim of privacy")
    ] = 0.0
    clip: Annotated[float, Field(gt=0, lt=0.5, description="noised θ is kept within [clip, 1 - clip]")] = 0.1
    sampling: Annotated[
        Literal["stratified", "independent"],
        Field(description="how the K uploaded masks are drawn: jointly, so that their mean strays less, or each alone"),
    ] = "stratified"
    coding: Annotated[
        Literal["entropy", "packed", "klms"],
        Field(description="how masks travel up: coded under θ_t, as packed bits, or chosen from common draws (lossy)"),
    ] = "entropy"
    klms_bits: Annotated[int, Field(ge=1, le=12, description="klms: bits to choose a block's candidate")] = 6
    klms_block: Annotated[int, Field(ge=1, description="klms: elements a block")] = 64
    final_mask: Annotated[
        Literal["mode", "sample"],
        Field(description="the stored mask: θ > 1/2, or drawn from θ as in the paper"),
    ] = "mode"

    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 12}
