"""Kind `padpaf`: content that all clients share, with one client's style or with none."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from vitrail.models.kinds import ModelKind
from vitrail.models.kinds.seeded import RECOMPUTED, statistics_inputs
from vitrail.models.limits import check_activation, check_integer, check_tensors
from vitrail.nets.content_style import ContentStyleGenerator, build_content_and_style
from vitrail.nets.masked import recalibrate


class PadpafKind(ModelKind):
    """State dicts of content and, in a personal model, of a style; BatchNorm's statistics are computed from noise."""

    meaning = "ordinary weights; content that all clients share, with one client's style or with none"

    @classmethod
    def check(cls, tree: dict[str, Any]) -> int:
        for name in ("width", "latent", "style_depth"):
            check_integer(tree, name)
        content, style = build_content_and_style(tree)
        size = check_tensors(content, tree["content"])
        if "style" in tree:
            size += check_tensors(style, tree["style"])
        check_activation(content, tree["shape"][1], tree["classes"], size)
        return size

    @classmethod
    def build(cls, tree: dict[str, Any]) -> nn.Module:
        with torch.device("meta"):  # a model without a style does not store the weights that a style would have
            content, style = build_content_and_style(tree)
        content.to_empty(device="cpu").load_state_dict(tree["content"])
        if "style" in tree:
            style.to_empty(device="cpu").load_state_dict(tree["style"])
        net = ContentStyleGenerator(content, style if "style" in tree else None)
        return recalibrate(net, statistics_inputs(net, 0, tree["classes"]))

    @classmethod
    def largest_part(cls, net: nn.Module, stored: int) -> tuple[nn.Module, int]:
        return cast(ContentStyleGenerator, net).content, stored

    @classmethod
    def batch_norm(cls, tree: dict[str, Any]) -> str:  # noqa: ARG003
        return RECOMPUTED
