"""Feature networks by name, with the public facts about each: what it was trained on.

Two small networks come with the package, each trained on one public data set only, so that there is always one that
has never seen the data. VGG19 is the network of the PRISM paper; its weights are downloaded once.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import torch

from vitrail.nets.feature_network import Features, LayerPlan
from vitrail.nets.pretrained import find_weights, read_tensors, take
from vitrail.utils.errors import VitrailError
from vitrail.utils.paths import data_home as default_home
from vitrail.utils.registry import Registry

WEIGHTS = Path(__file__).parent / "weights"
VGG19_SMALLER = "vgg19_normalised_features_fp16.safetensors"  # convolutions only, scaled per channel
VGG19_URL = "https://download.pytorch.org/models/vgg19-dcbb9e9d.pth"  # torchvision's

# Average pooling gives every pixel a gradient. ImageNet's mean and std are moved from [0, 1] to [-1, 1].
SMALL = LayerPlan(((16,), (32, 32), (64, 64), (96, 96)), "average")
VGG19 = LayerPlan(
    ((64, 64), (128, 128), (256,) * 4, (512,) * 4, (512,) * 4),
    "max",
    mean=(2 * 0.485 - 1, 2 * 0.456 - 1, 2 * 0.406 - 1),
    std=(2 * 0.229, 2 * 0.224, 2 * 0.225),
)


class FeatureNetwork:
    """Facts about a feature network; subclass it and register the subclass in FEATURES.

    All registered networks consist of convolutions and ReLUs. Their outputs are therefore at least 0, on which the
    sensitivity of private feature sums depends. Evaluation never ranks a model by a network that it was trained
    against, and a run is never called private if its network was trained on the run's data.

    Examples:
        >>> import tempfile
        >>> from safetensors.torch import save_file
        >>> file = Path(tempfile.mkdtemp()) / "xray.safetensors"
        >>> weights = {"features.0.weight": torch.ones(8, 3, 3, 3), "features.0.bias": torch.zeros(8)}
        >>> save_file(weights, file)
        >>> @FEATURES.register("xray", "one layer, trained on ChestX-ray14")
        ... class Xray(FeatureNetwork):
        ...     plan = LayerPlan(((8,),), "average")
        ...     trained_on = "chestx-ray14"
        ...     data_words = ("chestxray", "nih")
        ...
        ...     @classmethod
        ...     def weights(cls, home):
        ...         return file
        >>> load_features("xray").dim((1, 32, 32)), was_trained_on("xray", "folder:NIH-images")
        (8192, True)
    """

    plan: ClassVar[LayerPlan]
    """The layers of the network."""
    trained_on: ClassVar[str]
    """The public data set that the network was trained on; it is quoted in ledgers and reports."""
    data_words: ClassVar[tuple[str, ...]] = ()
    """Words, without hyphens and underscores, by which the name of a data source refers to that data set."""

    @classmethod
    def weights(cls, home: Path) -> Path:
        """Return the file of the weights; `home` is the folder for downloads.

        A .safetensors or .pth file with tensors `features.N.weight` and `features.N.bias`, where N is the index of
        the convolution in torchvision's list of layers (`LayerPlan.positions`).
        """
        raise NotImplementedError(f"{cls.__name__} must implement weights(home)")


class VitrailFashion(FeatureNetwork):
    """The small network trained on Fashion-MNIST."""

    plan, trained_on, data_words = SMALL, "fashion-mnist", ("fashion", "fmnist")

    @classmethod
    def weights(cls, home: Path) -> Path:  # noqa: ARG003
        return WEIGHTS / "vitrail-fashion.safetensors"


class VitrailCifar(FeatureNetwork):
    """The small network trained on CIFAR-10; CINIC-10 contains CIFAR-10's images."""

    plan, trained_on, data_words = SMALL, "cifar10", ("cifar", "cinic")

    @classmethod
    def weights(cls, home: Path) -> Path:  # noqa: ARG003
        return WEIGHTS / "vitrail-cifar.safetensors"


class Vgg19(FeatureNetwork):
    """The network of the PRISM paper."""

    plan, trained_on, data_words = VGG19, "imagenet", ("imagenet",)

    @classmethod
    def weights(cls, home: Path) -> Path:
        return find_weights("features=vgg19", (VGG19_SMALLER,), VGG19_URL, home)


FEATURES: Registry[type[FeatureNetwork]] = Registry(
    "feature network",
    "vitrail.features",
    {
        "vitrail-fashion": (
            "vitrail.nets.features:VitrailFashion",
            "small network of this package (7 layers, 0.4 MB), trained on Fashion-MNIST only",
        ),
        "vitrail-cifar": (
            "vitrail.nets.features:VitrailCifar",
            "small network of this package (7 layers, 0.4 MB), trained on 10,000 images of CIFAR-10 only",
        ),
        "vgg19": (
            "vitrail.nets.features:Vgg19",
            "VGG19 (16 layers, 20 million weights, downloaded once), trained on ImageNet",
        ),
    },
)
"""Feature networks that `features=NAME` accepts; see `FeatureNetwork`."""


def layer_plan(name: str) -> LayerPlan:
    """Return the layers of a feature network."""
    return FEATURES[name].plan


def parse_layers(name: str, text: str) -> tuple[int, ...]:
    """Parse the setting `layers`.

    Args:
        name: The feature network.
        text: "all", or indices from 0 such as "1,3,7".

    Returns:
        The indices in ascending order.

    Raises:
        VitrailError: If an index is not one of the network's.

    Examples:
        >>> parse_layers("vitrail-cifar", "all"), parse_layers("vgg19", "3,0")
        ((0, 1, 2, 3, 4, 5, 6), (0, 3))
    """
    depth = len(layer_plan(name).widths)
    if text == "all":
        return tuple(range(depth))
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) < depth for word in words):
        raise VitrailError(
            f"layers={text}: expected all, or numbers from 0 to {depth - 1} for {name}, such as layers=0,2"
        )
    return tuple(sorted({int(word) for word in words}))


def was_trained_on(features: str, data_name: str) -> bool:
    """Return whether a feature network was trained on this data, judged by the data's name.

    Examples:
        >>> was_trained_on("vitrail-fashion", "hf:zalando/fashion_mnist"), was_trained_on("vitrail-fashion", "mnist")
        (True, False)
    """
    network = FEATURES[features]
    return any(_plain(word) in _plain(data_name) for word in network.data_words or (network.trained_on,))


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def choose_features(data_name: str) -> str:
    """Choose the feature network for a data source: one that was never trained on it.

    Fashion-MNIST and the colour sources take CIFAR-10's network, all others Fashion-MNIST's. Of hf:, folder: and npz:
    sources only the name is known; one that refers to both data sets takes VGG19.

    Examples:
        >>> choose_features("mnist5k"), choose_features("fashion-mnist"), choose_features("cifar10:1")
        ('vitrail-fashion', 'vitrail-cifar', 'vitrail-fashion')
    """
    fashion, cifar = was_trained_on("vitrail-fashion", data_name), was_trained_on("vitrail-cifar", data_name)
    if fashion and cifar:
        return "vgg19"
    colour = any(word in data_name.lower() for word in ("svhn", "celeb"))
    return "vitrail-cifar" if fashion or (colour and not cifar) else "vitrail-fashion"


def load_features(name: str, device: str | torch.device = "cpu", home: Path | None = None) -> Features:
    """Load a feature network with its weights.

    Args:
        name: One of FEATURES.
        device: The device for the network.
        home: Folder for downloaded weights; by default vitrail's data folder.

    Raises:
        VitrailError: If the name is not registered, or the weights cannot be found.
        Malformed: If the weights' file is damaged or is of another network.
    """
    if name not in FEATURES:
        raise VitrailError(f"features={name} is not registered; choose one of {', '.join(FEATURES)}")
    network = FEATURES[name]
    path = network.weights(home or default_home())
    psi, tensors = Features(network.plan), read_tensors(path)
    for position, conv in zip(network.plan.positions, psi.convs, strict=True):
        for part, own in conv.named_parameters():
            own.copy_(take(tensors, f"features.{position}.{part}", own.shape, path))
    return psi.to(device)
