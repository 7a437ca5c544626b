"""A mask as a model file stores it: coded by layer and by the sign of the weight under it, which the seed tells."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitrail.nets.masked import Masked
from vitrail.wire.codecs import Array
from vitrail.wire.entropy import decode, encode


def encode_mask(net: Masked, mask: Array, packed: bool = False) -> NDArray[np.uint8]:
    """A mask's bytes."""
    return encode(mask, _known(net), 2, packed)


def decode_mask(net: Masked, payload: Array) -> Array:
    """The mask again; bytes that are not one for this network are refused."""
    return decode(payload, _known(net), 2)


def _known(net: Masked) -> NDArray[np.uint8]:
    layer = np.repeat(np.arange(len(net.sizes)).astype(np.uint8), net.sizes)
    known: NDArray[np.uint8] = 2 * layer + (net.W.cpu().numpy() > 0)
    return known
