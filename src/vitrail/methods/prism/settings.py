"""PRISM's settings; methods/prism/algorithm.py says which of the paper's values they keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from vitrail.methods.masks import MaskSettings


@dataclass(frozen=True)
class PrismSettings(MaskSettings):
    """What a run of PRISM may choose."""

    privacy: Annotated[
        Literal["none", "moments", "mask-update", "paper"],
        Field(description="none; moments (noised once), mask-update (noised each round), paper (assumed, not proven)"),
    ] = "none"
    pool_size: Annotated[
        int, Field(ge=1, description="privacy=moments: a layer of ψ is averaged to at most this many places a side")
    ] = 4
    max_update_norm: Annotated[
        float, Field(ge=1e-6, le=1e4, description="mask-update: the change of θ is scaled to at most this norm")
    ] = 1.0
    loss: Annotated[
        Literal["moments", "gan"], Field(description="feature moments, or a discriminator (the paper's ablation)")
    ] = "moments"
    moment_averaging: Annotated[
        Literal["exponential", "adam", "none"],
        Field(description="how the fakes' moments are averaged over batches: adam is the paper's AMA"),
    ] = "exponential"
    ama_lr: Annotated[float, Field(gt=0, le=1e3, description="rate of the paper's AMA (paper: 0.005)")] = 0.005
    theta_clamp: Annotated[
        float, Field(ge=0.001, lt=0.5, description="averaged θ is kept within [clamp, 1 - clamp]")
    ] = 0.02
    mada: Annotated[
        Literal["off", "sampled", "expected"],
        Field(description="move scores by λ towards the average, λ the distance of masks (paper: sampled)"),
    ] = "off"
    alpha: Annotated[float, Field(ge=0, le=100, description="per cent of layers that send scores (PRISM-α)")] = 0.0
    score_layers: Annotated[
        Literal["backward", "forward"], Field(description="score layers: the last, or the first")
    ] = "backward"
    score_form: Annotated[
        Literal["s", "theta"], Field(description="score layers send s (section 4.2) or θ (Algorithm 2)")
    ] = "s"
    score_codec: Annotated[Literal["float16", "float32"], Field(description="how score layers travel up")] = "float16"
    theta_clip: Annotated[
        float, Field(ge=1e-6, lt=0.5, description="mask-update, paper: noised θ is kept within [clip, 1 - clip]")
    ] = 0.1
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

    mechanisms: ClassVar = ("moments", "mask-update", "paper")
    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 12}

    @property
    def feature_network(self) -> str:
        return "" if self.loss == "gan" else self.features
