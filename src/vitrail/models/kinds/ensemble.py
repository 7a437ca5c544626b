"""Kind `ensemble`: a seed and a probability per weight, from which each batch draws a new mask."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import nn

from vitrail.models.kinds import ModelKind
from vitrail.models.kinds.seeded import RECOMPUTED, check_seeded, seeded_network, statistics_inputs
from vitrail.nets.masked import Ensemble
from vitrail.wire import scores
from vitrail.wire.range_coder import decode_values


class EnsembleKind(ModelKind):
    """Frozen random signs and scores; a new mask M ~ Bern(θ) for every batch."""

    meaning = "frozen random signs from a seed, and a probability per weight: a new mask for every batch"
    coded_part = "scores"
    onnx_refusal = (
        "an ensemble draws a new mask for every batch, and an ONNX file has one network; "
        "export the run's model.safetensors, which is one mask"
    )

    @classmethod
    def check(cls, tree: dict[str, Any]) -> int:
        return check_seeded(tree, "scores", bits=16)

    @classmethod
    def build(cls, tree: dict[str, Any]) -> nn.Module:
        net = seeded_network(tree)
        s = decode_values(tree["scores"], sum(p.numel() for p in net.parameters()))
        theta = torch.from_numpy(scores.theta(s).astype(np.float32))
        return Ensemble(net, tree["seed"], theta, statistics_inputs(net, tree["seed"], tree["classes"]))

    @classmethod
    def largest_part(cls, net: nn.Module, stored: int) -> tuple[nn.Module, int]:
        return cast(Ensemble, net).masked.net, stored

    @classmethod
    def batch_norm(cls, tree: dict[str, Any]) -> str:  # noqa: ARG003
        return RECOMPUTED

    @classmethod
    def mask(cls, net: nn.Module) -> dict[str, Any]:
        theta = cast(Ensemble, net).theta
        return {"elements": theta.numel(), "share": float(theta.double().mean())}
