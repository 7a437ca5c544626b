"""What a client sends: declared parts of the method's reply, or the reason of a failure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vitrail.methods.base import PartSpec, Reply
from vitrail.utils.errors import VitrailError
from vitrail.wire.message import LONGEST_REASON, Part, make_part


def encode_parts(reply: Reply, declared: Mapping[str, PartSpec]) -> tuple[Part, ...]:
    """Encode a method's reply.

    Args:
        reply: What `Method.client_round` returned.
        declared: The method's `reply_spec`.

    Returns:
        The parts. Values of `metric.*` are clipped to their range, because a diverging loss is no reason to exclude a
        client.

    Raises:
        VitrailError: A part is not declared, or cannot be encoded as declared.
    """
    named = [(name, "", a) for name, a in reply.parts.items()]
    named += [(name, to, a) for (to, name), a in reply.relay.items()]
    parts = []
    for name, to, array in named:
        if name not in declared or (declared[name].how == "relay") != bool(to):
            raise VitrailError(f"part {name!r} is not declared by the method, so it does not leave the client")
        if name.startswith("metric."):
            limit = declared[name].limit
            array = np.nan_to_num(np.asarray(array), nan=limit).clip(-limit, limit)  # noqa: PLW2901
        try:
            parts.append(make_part(name, declared[name].codec, np.asarray(array), to))
        except VitrailError as e:
            raise VitrailError(f"its part {name!r} cannot be sent: {e}") from e
    return tuple(parts)


def reason_part(reason: str) -> Part:
    """Encode the reason of a failure."""
    return make_part("reason", "bytes", np.frombuffer(reason.encode()[:LONGEST_REASON], np.uint8))
