"""The settings of PS-FedGAN that are its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from vitrail.methods.psfedgan.local_gan_settings import LocalGanSettings


@dataclass(frozen=True)
class PsFedGanSettings(LocalGanSettings):
    """What a run of PS-FedGAN may choose."""

    d_coding: Annotated[
        Literal["plain", "delta", "int8", "int4"],
        Field(description="how D's travel: exactly (float32, or coded changes of it), or rounded to 8 or 4 bits"),
    ] = "plain"
    client_discriminators: Annotated[
        str, Field(description="clients with another D than d_kind and d_width say: NAME=KIND:WIDTH, commas between")
    ] = ""
    key_source: Annotated[
        Literal["agree", "file"],
        Field(description="G's secret seed: agreed on by X25519, or from CLIENT.key in the folder VITRAIL_KEYS"),
    ] = "agree"
