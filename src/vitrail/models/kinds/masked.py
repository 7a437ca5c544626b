"""Kind `masked`: a seed and one mask over the frozen random weights that it gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from vitrail.models.kinds import ModelKind
from vitrail.models.kinds.seeded import RECOMPUTED, check_seeded, seeded_network, statistics_inputs
from vitrail.nets.masked import Masked, recalibrate
from vitrail.nets.supermask import decode_mask


class MaskedKind(ModelKind):
    """Frozen random signs and a mask; BatchNorm's statistics are computed from noise."""

    meaning = "frozen random signs from a seed, and one bit per weight that keeps it or not"
    coded_part = "mask"

    @classmethod
    def check(cls, tree: dict[str, Any]) -> int:
        return check_seeded(tree, "mask", bits=1)

    @classmethod
    def build(cls, tree: dict[str, Any]) -> nn.Module:
        masked = Masked(seeded_network(tree), tree["seed"])
        net = masked.fix(torch.from_numpy(decode_mask(masked, tree["mask"]).astype(np.float32)))
        return recalibrate(net, statistics_inputs(masked, tree["seed"], tree["classes"]))

    @classmethod
    def batch_norm(cls, tree: dict[str, Any]) -> str:  # noqa: ARG003
        return RECOMPUTED

    @classmethod
    def mask(cls, net: nn.Module) -> dict[str, Any]:
        weights = list(net.parameters())
        elements, ones = sum(w.numel() for w in weights), sum(int(w.count_nonzero()) for w in weights)
        return {"elements": elements, "ones": ones, "share": ones / elements}
