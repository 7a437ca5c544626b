"""Kind `dcgan`: ordinary weights of the conditional DCGAN."""

from __future__ import annotations

from typing import Any

from torch import nn

from vitrail.models.kinds import ModelKind
from vitrail.models.limits import check_integer
from vitrail.nets.dcgan import DcganGenerator


class DcganKind(ModelKind):
    """A state dict and the sizes of its network."""

    @classmethod
    def network(cls, tree: dict[str, Any]) -> nn.Module:
        sizes = check_integer(tree, "width"), check_integer(tree, "z")
        return DcganGenerator(tuple(tree["shape"]), tree["classes"], *sizes)
