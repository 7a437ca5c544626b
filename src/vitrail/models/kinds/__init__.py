"""Kinds of model files: how each is checked, built, described and exported.

`seeded` has the kinds that a seed and a registered generator define, `weights` those of ordinary weights. A file names
its kind. The name is looked up in MODEL_KINDS and nowhere else; no module is imported because a file names it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from vitrail.models.limits import check_activation, check_tensors, shown
from vitrail.utils.errors import Malformed, nearest
from vitrail.utils.registry import Registry
from vitrail.utils.state import State

STORED = "stored with the weights"
_HERE = "vitrail.models.kinds"
REMEDY = "import the module that registers it, or list that module in the environment variable VITRAIL_PLUGINS"


class ModelKind:
    """Base class of model kinds; a kind of ordinary weights implements `network` only.

    A model's tree has at least `shape` ([channels, height, width]) and `classes` (0 without labels), which are checked
    before any method is called. The defaults of `check` and `build` expect a state dict in `tree["weights"]`.

    Examples:
        >>> import torch
        >>> from vitrail.models.limits import check_integer
        >>> from vitrail.models.model import Model
        >>> from vitrail.models.model_file import open_model
        >>> class Dots(nn.Module):
        ...     def __init__(self, shape, z):
        ...         super().__init__()
        ...         self.z, self.shape, self.linear = z, shape, nn.Linear(z, shape[0] * shape[1] * shape[2])
        ...
        ...     def forward(self, z, labels=None):
        ...         return torch.tanh(self.linear(z)).view(-1, *self.shape)
        >>> @MODEL_KINDS.register("dots", "one linear layer")
        ... class DotsKind(ModelKind):
        ...     @classmethod
        ...     def network(cls, tree):
        ...         return Dots(tuple(tree["shape"]), check_integer(tree, "z"))
        >>> tree = {"shape": [1, 8, 8], "classes": 0, "z": 4, "weights": Dots((1, 8, 8), 4).state_dict()}
        >>> open_model(Model("dots", tree), []).sample(3).shape
        torch.Size([3, 1, 8, 8])
    """

    meaning: ClassVar[str] = "ordinary weights"
    """What the file stores, for `vitrail show`."""
    makes_images: ClassVar[bool] = True
    """Whether the network is a generator; otherwise it is a classifier, of images in [-1, 1] to logits."""
    coded_part: ClassVar[str] = ""
    """The part of the tree that codes one number per weight; empty: none."""
    settings: ClassVar[tuple[str, ...]] = ("generator", "width", "latent_dim")
    """Settings that determine the network, where the tree has them: a node refuses a model with other values."""
    onnx_refusal: ClassVar[str] = ""
    """Why the kind cannot be exported to ONNX, and what to do; empty: it can."""
    statistics: ClassVar[str] = STORED
    """Where BatchNorm's statistics come from, for `vitrail show`."""

    @classmethod
    def network(cls, tree: dict[str, Any]) -> nn.Module:
        """Build the untrained network that a tree describes; called on the meta device, too.

        A generator has an attribute `z`, its number of noise dimensions, and is called with noise (n, z) and labels
        (n,) or None; it returns images in [-1, 1].

        Args:
            tree: The model's tree, such as `shape`, `classes` and the sizes of layers; from an untrusted file.

        Returns:
            The network, with any weights.

        Raises:
            Malformed: If the tree does not describe a network.
        """
        raise NotImplementedError(f"{cls.__name__} must implement network(tree)")

    @classmethod
    def check(cls, tree: dict[str, Any]) -> int:
        """Check a tree before memory is allocated for its network; called on the meta device.

        Args:
            tree: The model's tree, from an untrusted file.

        Returns:
            The bytes of the tensors that the model consists of.

        Raises:
            Malformed: If the tree does not fit together or needs more memory than its file justifies.
        """
        net = cls.network(tree)
        stored = check_tensors(net.state_dict(), tree["weights"])
        if cls.makes_images:
            check_activation(net, tree["shape"][1], tree["classes"], stored)
        return stored

    @classmethod
    def build(cls, tree: dict[str, Any]) -> nn.Module:
        """Build the trained network from a tree that was checked.

        Args:
            tree: The model's tree.

        Returns:
            The network, in evaluation mode.
        """
        net = cls.network(tree)
        net.load_state_dict(tree["weights"])
        return net.eval()

    @classmethod
    def with_private_part(cls, tree: dict[str, Any], private: State) -> dict[str, Any]:  # noqa: ARG003
        """Return a client's personal model: the tree that all clients have, with the client's private weights.

        Args:
            tree: The tree of the shared model, checked.
            private: The client's private state, or its entry "personal" if it has one: `vitrail sample MODEL --client
                FILE` has only the two files, so a client that stores more than its model stores the model there.

        Returns:
            The tree of a complete model.

        Raises:
            Malformed: If models of this kind have no private part, or the state has none that fits the tree.
        """
        raise Malformed("models of this kind have no private part")

    @classmethod
    def num_tensors(cls, tree: dict[str, Any]) -> int:
        """Return the number of tensors that the model consists of.

        Args:
            tree: The model's tree, checked.

        Returns:
            The number of stored tensors.
        """
        return len(tree.get("weights", ()))

    @classmethod
    def num_generators(cls, tree: dict[str, Any]) -> int:  # noqa: ARG003
        """Return the number of generators, of which a run has at most one per client.

        Args:
            tree: The model's tree, checked.

        Returns:
            The number of generators; by default 1.
        """
        return 1

    @classmethod
    def largest_part(cls, net: nn.Module, stored: int) -> tuple[nn.Module, int]:
        """Return the network that computes one image, and the bytes stored for it.

        Args:
            net: The whole network.
            stored: The bytes stored for the whole network.

        Returns:
            A part of `net` and its bytes; by default the arguments.
        """
        return net, stored

    @classmethod
    def batch_norm(cls, tree: dict[str, Any]) -> str:  # noqa: ARG003
        """Describe where BatchNorm's statistics come from; by default `statistics`.

        Args:
            tree: The model's tree, checked.

        Returns:
            A few words for `vitrail show`.
        """
        return cls.statistics

    @classmethod
    def mask(cls, net: nn.Module) -> dict[str, Any]:  # noqa: ARG003
        """Describe the mask of a built network.

        Args:
            net: The built network.

        Returns:
            `elements`, `share` of ones, and `ones` where the mask is fixed; empty without a mask.
        """
        return {}


MODEL_KINDS: Registry[type[ModelKind]] = Registry(
    "model kind",
    "vitrail.model_kinds",
    {
        "masked": (f"{_HERE}.seeded:MaskedKind", "a seed and one mask over its frozen random weights"),
        "ensemble": (f"{_HERE}.seeded:EnsembleKind", "a seed and a probability per weight"),
        "dense": (f"{_HERE}.seeded:DenseKind", "trained weights of a registered generator, as float16"),
        "dcgan": (f"{_HERE}.weights:DcganKind", "ordinary weights of a DCGAN"),
        "mixture": (f"{_HERE}.weights:MixtureKind", "several DCGANs, one of which draws each image"),
        "padpaf": (f"{_HERE}.weights:ContentStyleKind", "shared content with one client's style, or with none"),
        "classifier": (f"{_HERE}.weights:ClassifierKind", "ordinary weights of a classifier"),
    },
)


def kind_named(name: object) -> type[ModelKind]:
    """Return the model kind that a file names.

    Raises:
        Malformed: If no kind of this name is registered.
    """
    if not isinstance(name, str) or name not in MODEL_KINDS:
        near = nearest(name[:60], MODEL_KINDS) if isinstance(name, str) else "expected text"
        raise Malformed(
            f"it is a model of kind {shown(name)}, which is not registered ({near}); it may be of a newer version "
            f"or of a plugin: {REMEDY}"
        )
    return MODEL_KINDS[name]
