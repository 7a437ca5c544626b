"""What attacks need of the method of a run. A method with these attributes can be attacked, whatever its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.auditing.single_reply import ClientReply
from vitrail.data.dataset import Images
from vitrail.methods.base import Method, PartSpec, ServerMessage
from vitrail.nets.features import Features, load_features, parse_layers
from vitrail.privacy.feature_sums import Summary
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.wire.codecs import Array
from vitrail.wire.scores import Scores

MASK_MECHANISMS = ("mask-update", "paper")
_SHORT = {"local_steps": 1, "batch_size": 2}  # training after a release is computed from it alone


@runtime_checkable
class ReleasesFeatureSums(Protocol):
    """A method whose clients release sums of features once (privacy/feature_sums.py).

    The sums are the part `sums` of a client's reply; or they stay in its private state, as `loss.released`, and all
    that leaves is computed from them.
    """

    @property
    def features(self) -> str: ...
    @property
    def layers(self) -> str: ...
    @property
    def pool_size(self) -> int: ...


@runtime_checkable
class SendsNoisedMasks(Protocol):
    """A method whose clients send masks that are drawn from noised probabilities θ."""

    @property
    def coding(self) -> str: ...
    @property
    def sampling(self) -> str: ...
    @property
    def theta_clip(self) -> float: ...
    @property
    def elements(self) -> tuple[int, int]: ...
    @property
    def split(self) -> tuple[slice, slice]: ...
    def uniform(self, message: ServerMessage, rng: Rng) -> Tensor: ...
    def upload(self, s: Tensor, s_t: Scores, message: ServerMessage, rng: Rng) -> dict[str, Array]: ...


@runtime_checkable
class HasNetworks(Protocol):
    """A method whose server state has networks as vectors, by the names that `nets` uses."""

    @property
    def latent_dim(self) -> int: ...
    def nets(self) -> Mapping[str, nn.Module]: ...
    def reply_spec(self) -> Mapping[str, PartSpec]: ...


def feature_summary(method: Method) -> Summary | None:
    """Return what a method's clients sum of an image; None if they release no sums of features.

    Args:
        method: The method of the run that is attacked.

    Raises:
        VitrailError: The method's mechanism is "moments", but it does not have the attributes that attacks need.
    """
    named = method.mechanism is not None and method.mechanism.name == "moments"
    if not named and "sums" not in method.reply_spec():
        return None
    if not isinstance(method, ReleasesFeatureSums):
        if named:
            raise VitrailError(f"{type(method).__name__} cannot be attacked: it lacks features, layers or pool_size")
        return None
    psi = _features(method.features, method.layers, method.task.device)
    return Summary(psi, method.pool_size, method.task.shape)


def released_sums(reply: ClientReply) -> NDArray[Any]:
    """Return the sums of features that a client released: those it sent, or those in its private state."""
    return np.asarray(reply.parts["sums"] if "sums" in reply.parts else reply.state["loss"]["released"])


def noised_masks(method: Method) -> SendsNoisedMasks | None:
    """Return a method whose clients send noised masks; None for other methods.

    Raises:
        VitrailError: The mechanism is one of noised masks, but the method lacks attributes that attacks need.
    """
    if method.mechanism is None or method.mechanism.name not in MASK_MECHANISMS:
        return None
    if not isinstance(method, SendsNoisedMasks):
        raise VitrailError(f"{type(method).__name__} cannot be attacked: it is not a SendsNoisedMasks (protocols.py)")
    return method


def shortened(method: Any) -> Any:
    """Return a method that trains as little as possible; what its clients release once does not change."""
    names = {field.name for field in fields(method)}
    return replace(method, **{name: value for name, value in _SHORT.items() if name in names})


def labels_of(data: Images, classes: int) -> NDArray[np.int64]:
    """Return images' labels; zeros without labels."""
    return data.labels if classes and data.labels is not None else np.zeros(len(data), np.int64)


@cache
def _features(name: str, layers: str, device: str) -> Features:
    psi = load_features(name, device=device)
    psi.layers = parse_layers(name, layers)
    return psi
