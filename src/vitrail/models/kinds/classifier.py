"""Kind `build_classifier`: ordinary weights of the small classifier."""

from __future__ import annotations

from typing import Any

from torch import nn

from vitrail.models.kinds import STORED, ModelKind
from vitrail.nets.classifier import build_classifier


class ClassifierKind(ModelKind):
    """A state dict; `norm` is "batch" or "group"."""

    meaning = "ordinary weights; it classifies images and generates none"
    makes_images = False

    @classmethod
    def network(cls, tree: dict[str, Any]) -> nn.Module:
        return build_classifier(tree["shape"][0], tree["classes"], tree.get("norm", "batch"))

    @classmethod
    def batch_norm(cls, tree: dict[str, Any]) -> str:
        return "absent: it has GroupNorm" if tree.get("norm") == "group" else STORED
