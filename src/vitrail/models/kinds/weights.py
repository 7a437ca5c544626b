"""Kinds `dcgan`, `mixture`, `padpaf` and `classifier`: ordinary weights, stored with the sizes of their network."""

from __future__ import annotations

from typing import Any, cast

from torch import nn

from vitrail.models.kinds import STORED, ModelKind
from vitrail.models.kinds.seeded import RECOMPUTED, statistics_inputs
from vitrail.models.limits import RANGES, check_activation, check_integer, check_tensors
from vitrail.nets.classifier import build_classifier
from vitrail.nets.content_style import ContentStyleGenerator, build_content_and_style
from vitrail.nets.dcgan import DcganGenerator
from vitrail.nets.flat import from_vector, on_meta, vector_size
from vitrail.nets.masked import recalibrate
from vitrail.nets.mixture import Mixture, known_classes
from vitrail.utils.errors import Malformed
from vitrail.utils.state import State


class DcganKind(ModelKind):
    """A state dict and the sizes of its network."""

    @classmethod
    def network(cls, tree: dict[str, Any]) -> nn.Module:
        sizes = check_integer(tree, "width"), check_integer(tree, "z")
        return DcganGenerator(tuple(tree["shape"]), tree["classes"], *sizes)


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
    def num_tensors(cls, tree: dict[str, Any]) -> int:
        return sum(map(len, tree["parts"]))

    @classmethod
    def num_generators(cls, tree: dict[str, Any]) -> int:
        return len(tree["parts"])

    @classmethod
    def build(cls, tree: dict[str, Any]) -> nn.Module:
        parts = [DcganKind.build({**tree, "weights": weights}) for weights in tree["parts"]]
        return Mixture(parts, tree["z"], known_classes(tree["labels"], tree["classes"])).eval()

    @classmethod
    def largest_part(cls, net: nn.Module, stored: int) -> tuple[nn.Module, int]:
        parts = cast(Mixture, net).parts
        return parts[0], stored // len(parts)


class ContentStyleKind(ModelKind):
    """State dicts of content and, in a personal model, of a style; BatchNorm's statistics are computed from noise."""

    meaning = "ordinary weights; content that all clients share, with one client's style or with none"
    statistics = RECOMPUTED
    settings = ("width", "style_depth", "label_maps")

    @classmethod
    def num_tensors(cls, tree: dict[str, Any]) -> int:
        return len(tree["content"]) + len(tree.get("style", ()))

    @classmethod
    def check(cls, tree: dict[str, Any]) -> int:
        for name, limits in (("width", RANGES["width"]), ("latent", RANGES["z"]), ("style_depth", (1, 64))):
            check_integer(tree, name, limits)
        content, style = build_content_and_style(tree)
        size = check_tensors(content.state_dict(), tree["content"])
        if "style" in tree:
            size += check_tensors(style.state_dict(), tree["style"])
        check_activation(content, tree["shape"][1], tree["classes"], size)
        return size

    @classmethod
    def build(cls, tree: dict[str, Any]) -> nn.Module:
        # On the meta device, as a model without a style does not store the weights that a style would have.
        content, style = on_meta(build_content_and_style, tree)
        content.to_empty(device="cpu").load_state_dict(tree["content"])
        if "style" in tree:
            style.to_empty(device="cpu").load_state_dict(tree["style"])
        net = ContentStyleGenerator(content, style if "style" in tree else None)
        return recalibrate(net, statistics_inputs(net, 0, tree["classes"]))

    @classmethod
    def with_private_part(cls, tree: dict[str, Any], private: State) -> dict[str, Any]:
        """Add the client's style, and its content where that is private, too."""
        if "style" not in private:
            raise Malformed("it has no style")
        content, style = on_meta(build_content_and_style, tree)
        tree = dict(tree)
        for name, net, vector in (("content", content, private.get("generator")), ("style", style, private["style"])):
            if vector is not None and vector.size != vector_size(net):
                raise Malformed(f"it has another size of {name}")
            if vector is not None:
                tree[name] = from_vector(net.to_empty(device="cpu"), vector).state_dict()
        return tree

    @classmethod
    def largest_part(cls, net: nn.Module, stored: int) -> tuple[nn.Module, int]:
        return cast(ContentStyleGenerator, net).content, stored


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
