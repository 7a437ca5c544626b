"""Kind `mixture`: several DCGANs; each image is drawn by one that knows its label, chosen by the noise."""

from __future__ import annotations

from typing import Any, cast

from torch import nn

from vitrail.models.kinds import ModelKind
from vitrail.models.kinds.dcgan import DcganKind
from vitrail.nets.mixture import Mixture, known_classes
from vitrail.utils.errors import Malformed


class MixtureKind(ModelKind):
    """State dicts of equal sizes, and the labels that each generator was trained on."""

    meaning = "several generators of ordinary weights; noise chooses one of those that know the label"
    onnx_refusal = (
        "a mixture chooses one of several generators for each image, and an ONNX file has one network; "
        "export a single generator instead"
    )

    @classmethod
    def check(cls, tree: dict[str, Any]) -> int:
        parts, labels = tree["parts"], tree["labels"]
        if not isinstance(parts, list) or not isinstance(labels, list) or not 0 < len(parts) == len(labels):
            raise Malformed("its generators and the labels that they know differ in number")
        return sum(DcganKind.check({**tree, "weights": weights}) for weights in parts)

    @classmethod
    def build(cls, tree: dict[str, Any]) -> nn.Module:
        parts = [DcganKind.build({**tree, "weights": weights}) for weights in tree["parts"]]
        return Mixture(parts, tree["z"], known_classes(tree["labels"], tree["classes"])).eval()

    @classmethod
    def largest_part(cls, net: nn.Module, stored: int) -> tuple[nn.Module, int]:
        parts = cast(Mixture, net).parts
        return parts[0], stored // len(parts)
