"""The published message M_p of PS-FedGAN (section 2.2.1): its parts, their largest sizes, and how it is read.

Reading a message needs no secret: the server does it, and so can an eavesdropper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitrail.methods.base import MAX_WEIGHT, PartSpec, is_sendable
from vitrail.methods.psfedgan.coding import Coding
from vitrail.utils.errors import Malformed
from vitrail.utils.state import State
from vitrail.wire.codecs import Array

if TYPE_CHECKING:
    from vitrail.methods.psfedgan.algorithm import PsFedGan

KEY_BYTES = 32  # of a public key, and of a digest
OWN_D_BYTES = 2**28  # limit for the discriminators of a client that has another D than the run's
# Decoded discriminators of one message may have as many bytes as the settings imply, or FREE_BYTES, or BYTES_PER_BYTE
# for each coded byte: with d_coding=int4 and half a bit per number, one coded byte decodes to 64 bytes.
FREE_BYTES, BYTES_PER_BYTE = 2**24, 64


@dataclass(frozen=True)
class Published:
    """What one message publishes: D_u of every step, one row each, and the seed of all z_t and l_t."""

    architecture: str
    discriminators: NDArray[np.float32]
    seed: int
    labels: Sequence[int]  # that l_t is drawn from
    context: Array | None  # what the next message's discriminators are coded against

    def state(self) -> State:
        """Return what is needed to read the next message."""
        return {"architecture": self.architecture, "published": self.context}


def reply_spec(run: PsFedGan) -> dict[str, PartSpec]:
    """Declare the parts of a message."""
    numbers = _numbers_per_message(run)
    plain = run.d_coding == "plain"
    limit = max(OWN_D_BYTES, run.check_message_size(max(numbers)) if plain else 4 * max(numbers))
    parts = {
        "digest": PartSpec("each", "bytes", KEY_BYTES),
        "generation": PartSpec("each", "int32", 1),
        "seed": PartSpec("each", "seed", 1),
        "architecture": PartSpec("each", "bytes", None, limit_bytes=40),
        "discriminators": PartSpec(
            "each",
            "float32" if plain else "bytes",
            None,
            limit_bytes=limit,
            numbers=None if plain else numbers[0],
            shape=(run.steps_per_message, None) if plain else (None,),
        ),
        "metric.sent_back": PartSpec("sum", "float32", 1),
    }
    if run.key_source == "agree":
        parts["key"] = PartSpec("each", "bytes", KEY_BYTES)
    return parts | run.common_parts()


def read(run: PsFedGan, parts: Mapping[str, Array], before: State | None) -> Published:
    """Read a message.

    Args:
        run: The method; neither its keys nor a generator are needed.
        parts: The message's parts by name.
        before: `Published.state()` of this client's last message, None before the first.

    Raises:
        Malformed: If the message's parts do not fit together or to the settings.
    """
    name = bytes(parts["architecture"]).decode("ascii", "replace")
    labels, coding = run.read_labels(parts), run.coding(name)
    context = before["published"] if before is not None and before["architecture"] == name else None
    _check_decoded_size(run, coding, parts["discriminators"])
    rows = coding.decode(parts["discriminators"], run.steps_per_message, context)
    if not is_sendable(rows):
        raise Malformed(f"the discriminators have weights that are not finite, or larger than {MAX_WEIGHT:g}")
    return Published(name, rows, int(parts["seed"][0]), labels, coding.next_context(rows, context))


def _numbers_per_message(run: PsFedGan) -> list[int]:
    """Return the numbers in one message: with the run's D first, then with each D of client_discriminators."""
    users = [run, *map(run.for_client, run.own_discriminators)]
    return [user.steps_per_message * sum(user.coding(user.architecture).sizes) for user in users]


def _check_decoded_size(run: PsFedGan, coding: Coding, sent: Array) -> None:
    """Refuse discriminators that would decode to far more memory than the message and the settings justify."""
    decoded = 4 * run.steps_per_message * sum(coding.sizes)
    limit = max(4 * max(_numbers_per_message(run)), FREE_BYTES, BYTES_PER_BYTE * sent.nbytes)
    if decoded > limit:
        raise Malformed(
            f"{sent.nbytes:,} bytes of discriminators of an architecture that takes {decoded:,} bytes; "
            f"at most {limit:,} are decoded"
        )
