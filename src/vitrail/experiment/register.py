"""Decorators that add methods, networks, data and metrics of your own; `vitrail.register_method` and so on.

A registered name can be used in settings and on the command line. Packages can register by entry points instead: the
group is named in each function's description.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeVar, cast

T = TypeVar("T")


def _register(where: str, name: str, summary: str) -> Callable[[T], T]:
    module, _, registry = where.partition(":")
    return cast("Callable[[T], T]", getattr(import_module(module), registry).register(name, summary))


def register_method(name: str, summary: str = "") -> Callable[[T], T]:
    """Register a method: a frozen dataclass that derives from `vitrail.BaseMethod`. Group: vitrail.methods.

    Args:
        name: The name in settings, such as `vitrail run NAME`.
        summary: One line for listings; default: the first line of the docstring.

    Returns:
        A decorator that registers a class and returns it unchanged.

    Examples:
        >>> import vitrail
        >>> from dataclasses import dataclass
        >>> from vitrail.experiment.settings import resolve
        >>> from vitrail.methods.baselines.fedavg import FedAvg
        >>> @vitrail.register_method("slow-fedavg", "FedAvg with a smaller learning rate")
        ... @dataclass(frozen=True)
        ... class SlowFedAvg(FedAvg):
        ...     lr: float = 1e-4
        >>> resolve("slow-fedavg", {}).lr
        0.0001
    """
    return _register("vitrail.methods.registry:METHODS", name, summary)


def register_generator(name: str, summary: str = "") -> Callable[[T], T]:
    """Register a generator for `generator=NAME`. Group: vitrail.generators.

    The entry is called as `entry(shape, classes, width)` and returns a torch module with an integer attribute `z`, the
    number of noise dimensions, that maps noise (n, z) and labels (n,), or None, to images in [-1, 1]. Its memory is
    found by a pass on the meta device, unless it has a method `feature_maps(side)` that returns (channels, height) of
    its largest feature maps for images of this side, which is faster.

    Args:
        name: The name in settings, such as `generator=NAME`.
        summary: One line for listings; default: the first line of the docstring.

    Returns:
        A decorator that registers a class or function and returns it unchanged.

    Examples:
        >>> import torch, vitrail
        >>> from vitrail.nets.generators import build_generator
        >>> @vitrail.register_generator("one-layer", "one linear layer")
        ... class OneLayer(torch.nn.Module):
        ...     def __init__(self, shape, classes, width):
        ...         super().__init__()
        ...         self.z, self.shape = 16, shape
        ...         self.linear = torch.nn.Linear(self.z, shape[0] * shape[1] * shape[2])
        ...
        ...     def forward(self, z, labels=None):
        ...         return torch.tanh(self.linear(z)).view(-1, *self.shape)
        >>> build_generator("one-layer", (1, 8, 8), 0, 1.0)(torch.randn(3, 16)).shape
        torch.Size([3, 1, 8, 8])
    """
    return _register("vitrail.nets.generators:GENERATORS", name, summary)


def register_discriminator(name: str, summary: str = "") -> Callable[[T], T]:
    """Register a discriminator for `d_architecture=NAME`. Group: vitrail.discriminators.

    The entry is called as `entry(shape, classes, width)` and returns a torch module that maps images in [-1, 1] and
    labels, or None, to one logit per image.

    Args:
        name: The name in settings, such as `d_architecture=NAME`.
        summary: One line for listings; default: the first line of the docstring.

    Returns:
        A decorator that registers a class or function and returns it unchanged.

    Examples:
        >>> import torch, vitrail
        >>> from vitrail.nets.discriminators import DISCRIMINATORS
        >>> @vitrail.register_discriminator("linear", "one linear layer")
        ... class Linear(torch.nn.Module):
        ...     def __init__(self, shape, classes, width):
        ...         super().__init__()
        ...         self.linear = torch.nn.Linear(shape[0] * shape[1] * shape[2], 1)
        ...
        ...     def forward(self, images, labels=None):
        ...         return self.linear(images.flatten(1)).squeeze(1)
        >>> DISCRIMINATORS["linear"]((1, 8, 8), 0, 32)(torch.zeros(3, 1, 8, 8)).shape
        torch.Size([3])
    """
    return _register("vitrail.nets.discriminators:DISCRIMINATORS", name, summary)


def register_features(name: str, summary: str = "") -> Callable[[T], T]:
    """Register a feature network, a subclass of `vitrail.nets.features.FeatureNetwork`. Group: vitrail.features.

    Args:
        name: The name in settings, such as `features=NAME`.
        summary: One line for listings; default: the first line of the docstring.

    Returns:
        A decorator that registers a class and returns it unchanged.

    Examples:
        >>> import tempfile, torch, vitrail
        >>> from pathlib import Path
        >>> from safetensors.torch import save_file
        >>> from vitrail.nets.feature_network import LayerPlan
        >>> from vitrail.nets.features import FeatureNetwork, load_features
        >>> file = Path(tempfile.mkdtemp()) / "contours.safetensors"
        >>> save_file({"features.0.weight": torch.randn(8, 3, 3, 3), "features.0.bias": torch.zeros(8)}, file)
        >>> @vitrail.register_features("contours", "one random layer, trained on nothing")
        ... class Edges(FeatureNetwork):
        ...     plan = LayerPlan(((8,),), "average")
        ...     trained_on = "nothing"
        ...
        ...     @classmethod
        ...     def weights(cls, home):
        ...         return file
        >>> load_features("contours").dim((1, 8, 8))
        512
    """
    return _register("vitrail.nets.features:FEATURES", name, summary)


def register_metric(name: str, summary: str = "") -> Callable[[T], T]:
    """Register a metric for `vitrail evaluate --metrics NAME`. Group: vitrail.metrics.

    The entry is called with a `MetricContext` and returns a `Metric`, whose description has an example.

    Args:
        name: The name for `--metrics`.
        summary: One line for listings; default: the first line of the docstring.

    Returns:
        A decorator that registers a class or function and returns it unchanged.

    Examples:
        >>> import vitrail
        >>> from vitrail.data import load
        >>> from vitrail.metrics.evaluation import evaluate
        >>> from vitrail.metrics.samples import Samples
        >>> @vitrail.register_metric("darkest", "smallest pixel of the generated images")
        ... class Darkest:
        ...     def __init__(self, context):
        ...         self.darkest = 1.0
        ...
        ...     def update(self, images, labels):
        ...         self.darkest = min(self.darkest, float(images.min()))
        ...
        ...     def compute(self):
        ...         return self.darkest
        >>> digits = load("digits", size=8)
        >>> [(m.name, m.value) for m in evaluate(Samples.of(digits), digits, 100, ["darkest"])]
        [('darkest', -1.0)]
    """
    return _register("vitrail.metrics.registry:METRICS", name, summary)


def register_source(name: str, summary: str = "") -> Callable[[T], T]:
    """Register a data source for `data=NAME` or `data=NAME:ARGUMENT`. Group: vitrail.sources.

    The entry is a function that takes a `vitrail.data.ReadRequest` and returns a `vitrail.Dataset`.

    Args:
        name: The name in settings, such as `data=NAME`.
        summary: One line for listings; default: the first line of the docstring.

    Returns:
        A decorator that registers a function and returns it unchanged.

    Examples:
        >>> import numpy as np, vitrail
        >>> from vitrail.data import load
        >>> @vitrail.register_source("grey", "uniform grey images")
        ... def grey(request):
        ...     images = vitrail.Images(np.full((10, 1, 8, 8), 128, np.uint8), None)
        ...     return vitrail.Dataset("grey", images, images, ())
        >>> load("grey", size=8, test_fraction=0.2).shape
        (1, 8, 8)
    """
    return _register("vitrail.data.sources:SOURCES", name, summary)


def register_partition(name: str, summary: str = "") -> Callable[[T], T]:
    """Register a partition for `partition=NAME`. Group: vitrail.partitions.

    The entry takes a `vitrail.data.PartitionRequest` and returns one array of positions per client.

    Args:
        name: The name in settings, such as `partition=NAME`.
        summary: One line for listings; default: the first line of the docstring.

    Returns:
        A decorator that registers a function and returns it unchanged.

    Examples:
        >>> import numpy as np, vitrail
        >>> from vitrail.data import load, partition
        >>> @vitrail.register_partition("every-nth", "client k has images k, k + n, k + 2 n, ...")
        ... def every_nth(request):
        ...     return [request.pool[k :: request.clients] for k in range(request.clients)]
        >>> shares = partition("every-nth", load("digits"), 3, np.random.default_rng(0))
        >>> shares.indices[1][:3].tolist()
        [1, 4, 7]
    """
    return _register("vitrail.data.partitions:PARTITIONS", name, summary)


def register_transform(name: str, summary: str = "") -> Callable[[T], T]:
    """Register an image transform for `partition=domains:NAME,...`. Group: vitrail.transforms.

    The entry is a function of images, a float32 torch tensor (n, channels, height, width) in [0, 1], and a NumPy random
    generator; it returns images of the same shape, as a tensor or a NumPy array.

    Args:
        name: The name in settings, such as `partition=domains:NAME`.
        summary: One line for listings; default: the first line of the docstring.

    Returns:
        A decorator that registers a function and returns it unchanged.

    Examples:
        >>> import numpy as np, vitrail
        >>> from vitrail.data.transforms import apply_transform
        >>> from vitrail.utils.rng import Rng
        >>> @vitrail.register_transform("left-right", "mirrored images")
        ... def left_right(images, rng):
        ...     return images.flip(-1)
        >>> images = vitrail.Images(np.array([[[[1, 2]]]], np.uint8))
        >>> apply_transform(images, "left-right", Rng((0,))).pixels.tolist()
        [[[[2, 1]]]]
    """
    return _register("vitrail.data.transforms:TRANSFORMS", name, summary)


def register_model_kind(name: str, summary: str = "") -> Callable[[T], T]:
    """Register a kind of model file, a subclass of `vitrail.models.kinds.ModelKind`. Group: vitrail.model_kinds.

    Args:
        name: The kind that model files have, equal to `Model.kind`.
        summary: One line for listings; default: the first line of the docstring.

    Returns:
        A decorator that registers a class and returns it unchanged.

    Examples:
        >>> import torch, vitrail
        >>> from vitrail.models.kinds import ModelKind
        >>> from vitrail.models.model_file import open_model
        >>> class Noise(torch.nn.Module):
        ...     def __init__(self, shape):
        ...         super().__init__()
        ...         self.z, self.shape = shape[0] * shape[1] * shape[2], shape
        ...         self.scale = torch.nn.Parameter(torch.ones(1))
        ...
        ...     def forward(self, z, labels=None):
        ...         return torch.tanh(self.scale * z).view(-1, *self.shape)
        >>> @vitrail.register_model_kind("noise", "noise of one trained scale")
        ... class NoiseKind(ModelKind):
        ...     @classmethod
        ...     def network(cls, tree):
        ...         return Noise(tuple(tree["shape"]))
        >>> tree = {"shape": [1, 8, 8], "classes": 0, "weights": Noise((1, 8, 8)).state_dict()}
        >>> open_model(vitrail.Model("noise", tree), []).sample(3).shape
        torch.Size([3, 1, 8, 8])
    """
    return _register("vitrail.models.kinds:MODEL_KINDS", name, summary)


def register_mechanism(name: str, summary: str = "") -> Callable[[T], T]:
    """Register a privacy mechanism, so that owners of nodes can accept it by name. Group: vitrail.mechanisms.

    Args:
        name: The name for `accept=` in a node config, equal to `Mechanism.name`.
        summary: One line for listings; default: the first line of the docstring.

    Returns:
        A decorator that registers a function and returns it unchanged.

    Examples:
        >>> import vitrail
        >>> from vitrail.privacy.policy import from_config
        >>> @vitrail.register_mechanism("laplace-sums", "Laplace noise on clipped sums")
        ... def add_laplace(sums, scale, draw):
        ...     return sums + draw.laplace(scale=scale, size=sums.shape)
        >>> from_config({"accept": "laplace-sums", "max-epsilon": 2.0}).accept
        ('laplace-sums',)
    """
    return _register("vitrail.privacy.mechanism:MECHANISMS", name, summary)


def register_callback(name: str, summary: str = "") -> Callable[[T], T]:
    """Register a subclass of `vitrail.Callback` for `callbacks=NAME`. Group: vitrail.callbacks.

    Args:
        name: The name in settings, such as `callbacks=NAME`.
        summary: One line for listings; default: the first line of the docstring.

    Returns:
        A decorator that registers a class and returns it unchanged.

    Examples:
        >>> import vitrail
        >>> from vitrail.experiment.callbacks import build_callbacks
        >>> @vitrail.register_callback("print-round", "prints the number of each round")
        ... class PrintRound(vitrail.Callback):
        ...     def on_round_end(self, result, row):
        ...         print("round", row["round"])
        >>> build_callbacks(["print-round"]).on_round_end(None, {"round": 3})
        round 3
    """
    return _register("vitrail.experiment.callbacks:CALLBACKS", name, summary)
