"""The settings of PS-FedGAN that are its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from vitrail.methods.localgan_settings import LocalGanSettings


@dataclass(frozen=True)
class PsFedGanSettings(LocalGanSettings):
    """What a run of PS-FedGAN may choose."""

    d_coding: Annotated[
        Literal["plain", "delta"], Field(description="how D's travel, both exactly: float32, or coded changes of it")
    ] = "plain"
