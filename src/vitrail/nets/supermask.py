"""Coding of a mask for a model file, by layer and by the sign of the weight, both known from the seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitrail.nets.masked import Masked
from vitrail.wire.codecs import Array
from vitrail.wire.range_coder import decode, encode


def encode_mask(net: Masked, mask: Array, packed: bool = False) -> NDArray[np.uint8]:
    """Return a mask as bytes; `packed` uses one bit per weight instead of entropy coding."""
    return encode(mask, _contexts(net), 2, packed)


def decode_mask(net: Masked, payload: Array) -> Array:
    """Return the mask of coded bytes; bytes that do not fit the network raise Malformed."""
    return decode(payload, _contexts(net), 2)


def _contexts(net: Masked) -> NDArray[np.uint8]:
    layer = np.repeat(np.arange(len(net.sizes)).astype(np.uint8), net.sizes)
    contexts: NDArray[np.uint8] = 2 * layer + (net.W.cpu().numpy() > 0)
    return contexts
