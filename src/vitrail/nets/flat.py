"""Networks as vectors: weights and BatchNorm's statistics, in the order of the state dict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

T = TypeVar("T")


def _floats(net: nn.Module) -> list[Tensor]:
    return [t for t in net.state_dict().values() if t.is_floating_point()]


def to_vector(net: nn.Module) -> NDArray[np.float32]:
    """Return all floating-point state of a network as one vector.

    Examples:
        >>> to_vector(nn.Linear(2, 3)).size
        9
    """
    return torch.cat([t.detach().flatten().float().cpu() for t in _floats(net)]).numpy()


def tensor_sizes(net: nn.Module) -> tuple[int, ...]:
    """Return the sizes of the tensors in a network's vector; the network may be on the meta device.

    Examples:
        >>> tensor_sizes(nn.Linear(2, 3))
        (6, 3)
    """
    return tuple(t.numel() for t in _floats(net))


def on_meta(build: Callable[..., T], *args: Any) -> T:
    """Build a network on the meta device, where tensors have shapes and no memory."""
    with torch.device("meta"):
        return build(*args)


def vector_size(net: nn.Module) -> int:
    """Return the length of a network's vector; the network may be on the meta device."""
    return sum(tensor_sizes(net))


def trainable_mask(net: nn.Module) -> NDArray[np.bool_]:
    """Return which elements of a network's vector are trainable weights, not BatchNorm's statistics.

    Examples:
        >>> trainable_mask(nn.BatchNorm2d(2)).tolist()
        [True, True, True, True, False, False, False, False]
    """
    weights = {name for name, _ in net.named_parameters()}
    state = net.state_dict().items()
    return np.concatenate([np.full(t.numel(), name in weights) for name, t in state if t.is_floating_point()])


def from_vector(net: nn.Module, vector: NDArray[np.float32]) -> nn.Module:
    """Load a vector of `to_vector` into a network.

    Args:
        net: The network; it is changed in place.
        vector: Its floating-point state.

    Returns:
        The network.

    Raises:
        RuntimeError: If the vector has another length.

    Examples:
        >>> a, b = nn.Linear(2, 3), nn.Linear(2, 3)
        >>> torch.equal(from_vector(b, to_vector(a)).weight, a.weight)
        True
    """
    tensors = _floats(net)
    pieces = torch.from_numpy(np.array(vector, np.float32)).split([t.numel() for t in tensors])
    with torch.no_grad():
        for t, piece in zip(tensors, pieces, strict=True):
            t.copy_(piece.view_as(t))
    return net


def load_trainable(net: nn.Module, weights: NDArray[np.floating[Any]]) -> nn.Module:
    """Load trainable weights only; BatchNorm's statistics stay unchanged."""
    vector = to_vector(net)
    vector[trainable_mask(net)] = weights
    return from_vector(net, vector)
