"""The published message M_p of PS-FedGAN (section 2.2.1): its parts, their largest sizes, and how it is read.

One message has `steps_per_message` steps: D_u of each, exact or rounded (d_coding); one public seed for all z_t and
l_t; the name of D_u's architecture; an HMAC of G_u. Where D_u is rounded, both generators step against the rounded D_u
(a channel with quantization, section 3.3), and D_u itself is trained further in float32.

Reading a message needs no secret: the server does it, and so can an eavesdropper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.base import MAX_WEIGHT, PartSpec, is_sendable
from vitrail.methods.psfedgan.networks import own_discriminators, with_discriminator_of
from vitrail.nets.flat import on_meta
from vitrail.privacy import dpsgd
from vitrail.privacy.mechanism import Mechanism
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.state import State
from vitrail.wire import deltas
from vitrail.wire import quantization as rounded
from vitrail.wire.codecs import Array
from vitrail.wire.message import LARGEST

if TYPE_CHECKING:
    from vitrail.methods.psfedgan.algorithm import PsFedGan

Floats = NDArray[np.float32]
BITS = {"int8": 8, "int4": 4}
KEY_BYTES = 32  # of a public key, and of a digest
OWN_D_BYTES = 2**28  # limit for the discriminators of a client that has another D than the run's
# Decoded discriminators of one message may have as many bytes as the settings imply, or FREE_BYTES, or BYTES_PER_BYTE
# for each coded byte: with d_coding=int4 and half a bit per number, one coded byte decodes to 64 bytes.
FREE_BYTES, BYTES_PER_BYTE = 2**24, 64


@dataclass(frozen=True)
class Published:
    """What one message publishes: D_u of every step, one row each, and the seed of all z_t and l_t."""

    architecture: str
    discriminators: Floats
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
    limit = max(OWN_D_BYTES, check_message_size(run, max(numbers)) if plain else 4 * max(numbers))
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
    return parts | common_parts(run)


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
    labels, coding = read_labels(run, parts), run.coding(name)
    context = before["published"] if before is not None and before["architecture"] == name else None
    _check_decoded_size(run, coding, parts["discriminators"])
    rows = coding.decode(parts["discriminators"], run.steps_per_message, context)
    if not is_sendable(rows):
        raise Malformed(f"the discriminators have weights that are not finite, or larger than {MAX_WEIGHT:g}")
    return Published(name, rows, int(parts["seed"][0]), labels, coding.next_context(rows, context))


def _numbers_per_message(run: PsFedGan) -> list[int]:
    """Return the numbers in one message: with the run's D first, then with each D of client_discriminators."""
    users = [run, *(with_discriminator_of(run, client) for client in own_discriminators(run))]
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


# -- Coding of the discriminators: exact (float32, or coded differences), or rounded to 8 or 4 bits ------------------


@dataclass(frozen=True)
class Coding:
    """The coding of discriminators of one architecture."""

    name: str  # the setting d_coding
    sizes: tuple[int, ...]  # number of elements of each tensor of D

    def round(self, vector: Floats) -> Floats:
        """Return D as the receiver decodes it."""
        return rounded.quantize(vector, self.sizes, BITS[self.name]) if self.name in BITS else vector

    def encode(self, rows: Floats, context: Floats | None) -> Array:
        """Encode every step's D, one row per step, given the rows that the receiver already has."""
        if self.name == "plain":
            return rows
        if self.name == "delta":
            coded = deltas.encode(rows, context)
        else:
            coded = rounded.encode(rows, self.sizes, BITS[self.name], context)
        return np.frombuffer(coded, np.uint8)

    def decode(self, sent: Array, steps: int, context: Floats | None) -> Floats:
        """Decode every step's D, one row per step.

        Raises:
            Malformed: If the bytes do not decode to `steps` discriminators of this architecture.
        """
        size = sum(self.sizes)
        if self.name == "delta":
            return deltas.decode(sent.tobytes(), (steps, size), context)
        if self.name in BITS:
            return rounded.decode(sent.tobytes(), steps, self.sizes, BITS[self.name], context)
        if sent.size != steps * size:
            raise Malformed(f"{sent.size:,} numbers of discriminators; expected {steps} times {size:,}")
        return sent.reshape(steps, size)

    def next_context(self, rows: Floats, context: Floats | None) -> Floats | None:
        """Return the decoded rows that the next message is coded against: the last two."""
        if self.name == "plain":
            return None
        return np.array(rows[-2:] if context is None else np.vstack([context, rows])[-2:], np.float32)


# -- Labels and losses, also of fullgan -----------------------------------------------------------------------------


def sends_labels(run: PsFedGan) -> bool:
    """Return whether a client sends the set of its labels."""
    sent = ("declared", "auto", "public") if run.privacy == "none" else ("public",)
    return bool(run.task.classes) and run.label_sets in sent


def labels_of(run: PsFedGan, data: Images) -> list[int]:
    """Return the labels that l_t is drawn from: those of the client's images, or all."""
    if sends_labels(run) and data.labels is not None:
        return [int(y) for y in np.unique(data.labels)]
    return list(range(run.task.classes))


def read_labels(run: PsFedGan, parts: Mapping[str, Array]) -> list[int]:
    """Return the labels of a reply; all, where clients send none."""
    labels = [int(y) for y in np.flatnonzero(parts["labels"])] if sends_labels(run) else range(run.task.classes)
    if run.task.classes and not labels:
        raise Malformed("the reply declares no label; a client has at least one")
    return list(labels)


def common_parts(run: PsFedGan) -> dict[str, PartSpec]:
    """Declare labels and losses, where they may be sent."""
    parts = {"labels": PartSpec("each", "u1", run.task.classes)} if sends_labels(run) else {}
    return parts if run.mechanism is not None else {**parts, **gan.LOSSES}


def common_reply(run: PsFedGan, data: Images, losses: Sequence[Array]) -> dict[str, Array]:
    """Return the parts that `common_parts` declares; `losses` are those of all steps of G, and of D."""
    parts: dict[str, Array] = {}
    if sends_labels(run):
        parts["labels"] = np.isin(np.arange(run.task.classes), labels_of(run, data))
    if run.mechanism is None:
        mean = np.stack(losses, 1).mean(0).astype(np.float32)
        parts |= {"metric.loss_g": mean[:1], "metric.loss_d": mean[1:]}
    return parts


def check_message_size(run: PsFedGan, n: int) -> int:
    """Return the number of bytes of n float32 values.

    Raises:
        VitrailError: If they do not fit into one message.
    """
    if 4 * n > LARGEST - 2**20:
        raise VitrailError(
            f"steps_per_message={run.steps_per_message}: {4 * n:,} bytes in one message, more than "
            f"{LARGEST:,}: use fewer steps and more rounds, or narrower networks"
        )
    return 4 * n


def build_mechanism(run: PsFedGan) -> Mechanism:
    """Return dp-sgd on D at a noise multiplier of 1; everything else that leaves a client is computed from D."""
    if run.label_sets == "declared":
        raise VitrailError(
            "privacy=dp-sgd with label_sets=declared: the set of a client's labels would leave without noise; "
            "use label_sets=all, or, if that set may be public, label_sets=public"
        )
    dpsgd.check(on_meta(run.discriminator, run.architecture))
    noised = dpsgd.mechanism(run.max_grad_norm, run.sample_rate, run.steps_per_message * run.d_steps, run.released)
    if not sends_labels(run):
        return noised
    public = "which labels a client has images of"
    return replace(noised, public=public, leaves=f"{noised.leaves}; without noise, {public}")
