"""What server and clients exchange: the task, the parts of a reply, requests, replies and sums.

A method (methods/base.py) is written in these types; engines encode, check and carry them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from vitrail.wire.codecs import Array
from vitrail.wire.message import NO_BASE

if TYPE_CHECKING:  # utils.state imports torch; a node that only describes itself starts faster without it
    from vitrail.utils.state import State

NUM_CLIENTS = "clients"  # value of `PartSpec.over`: divide by the number of clients that replied
LAST_COUNTED = "counted"  # request part: the round of the client's last reply that was aggregated (see `needs_ack`)
MAX_VALUE = 2.0**16  # default bound on the magnitude of a float in a reply
MAX_WEIGHT = 65504.0  # bound on the magnitude of an averaged weight: the largest float16, so that it can be sent


@dataclass(frozen=True)
class Task:
    """What every party knows before the first message.

    Args:
        shape: Channels, height and width of the images.
        classes: Number of classes; 0 if images are unlabelled.
        rounds: Number of rounds.
        clients: Number of clients in the federation; it bounds counts and sums.
        device: Torch device of the clients.
        secagg_threshold: Clients that must remain to open a secure sum; 0 turns secure aggregation off.
        noise_source: Source of noise and secrets: the run's seed (simulations) or the operating system.
        aggregation: How the server averages over clients.
        trim: Share of the replies removed at each end, for `aggregation="trimmed_mean"`.
        images: Largest number of images of any client, where the server knows it; 0 if unknown.

    Examples:
        >>> Task((1, 32, 32), classes=10, rounds=12, clients=8).noise_source
        'seed'
    """

    shape: tuple[int, int, int]
    classes: int
    rounds: int
    clients: int
    device: str = "cpu"
    secagg_threshold: int = 0
    noise_source: Literal["seed", "os"] = "seed"
    aggregation: Literal["mean", "median", "trimmed_mean"] = "mean"
    trim: float = 0.1
    images: int = 0


UNSET_TASK = Task((1, 8, 8), 0, 1, 1)  # the task of a method before a run sets it


@dataclass(frozen=True)
class PartSpec:
    """The declaration of one part of a reply. A client sends no other parts.

    Args:
        how: "sum" parts are added up in 64-bit fixed point as they arrive, so the result does not depend on the order
            of clients and the server needs no single client's value. "each" parts are passed to `Method.receive`.
            "relay" parts are for another client; the server only checks their shape and range.
        codec: How the array is encoded, such as "float32" (see `vitrail.wire.codecs`).
        size: Number of elements; None allows any number up to `limit_bytes`, and an empty part has the shape (0,).
        limit: Largest magnitude of an element; the server refuses a reply that exceeds it.
        least: Smallest element, if it is not `-limit`.
        limit_bytes: Largest encoded size of a part of any number of elements.
        unpack: Decodes an "each" part from bytes, given the server's state.
        numbers: Number of values that such a byte-coded part represents.
        over: What the method divides a sum by: the name of another part, or NUM_CLIENTS; empty if it is not a mean.
        shape: Shape on the wire; None: any length that matches the size.

    Examples:
        >>> PartSpec("sum", "float32", 10).has_shape((10,))
        True
    """

    how: Literal["sum", "each", "relay"]
    codec: str
    size: int | None
    limit: float = MAX_VALUE
    least: float = -math.inf
    limit_bytes: int = 2**28
    unpack: Callable[[State, Array], Array] | None = None
    numbers: int | None = None
    over: str = ""
    shape: tuple[int | None, ...] = (None,)

    def has_shape(self, shape: tuple[int, ...]) -> bool:
        """Return whether an array of this shape matches the declaration.

        Args:
            shape: Shape of a decoded array.

        Returns:
            Whether it matches.

        Examples:
            >>> images = PartSpec("each", "bytes", None, shape=(None, 1, 8, 8))
            >>> images.has_shape((5, 1, 8, 8)), images.has_shape((5, 3, 8, 8))
            (True, False)
        """
        if self.size is None and shape == (0,):
            return True
        if self.size is not None and self.unpack is None and math.prod(shape) != self.size:
            return False
        return len(shape) == len(self.shape) and all(
            want in (None, n) for n, want in zip(shape, self.shape, strict=True)
        )

    @property
    def most_bytes(self) -> int:
        """Largest encoded size that the server accepts."""
        return self.limit_bytes if self.size is None else 16 * self.size + 2**10

    @property
    def bits(self) -> bool:
        """Whether every element is 0 or 1."""
        return (self.least, self.limit) == (0, 1) and not self.codec.startswith("float")


@dataclass(frozen=True)
class Broadcast:
    """A request to one client.

    Args:
        parts: Codec and array of each part, by name.
        base: Identifies the client state that the request builds on (see `Reply.state_id`).
        numbers: Number of values represented by parts that are coded to bytes.

    Examples:
        >>> Broadcast({"weights": ("float16", np.zeros(10, np.float32))}).parts["weights"][0]
        'float16'
    """

    parts: Mapping[str, tuple[str, Array]]
    base: bytes = NO_BASE
    numbers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerMessage:
    """A decoded request, as `Method.client_round` receives it.

    Args:
        round: Number of the round, from 0.
        parts: The arrays of the server's `Broadcast`, by name.
        relayed: Arrays sent by other clients: (sender, name) -> array.
        exchange: Number of the exchange within the round.

    Examples:
        >>> ServerMessage(3, {"weights": np.zeros(10, np.float32)}).parts["weights"].shape
        (10,)
    """

    round: int
    parts: Mapping[str, Array]
    relayed: Mapping[tuple[str, str], Array] = field(default_factory=dict)
    exchange: int = 0


@dataclass(frozen=True)
class Reply:
    """A client's reply.

    Args:
        parts: The parts declared by `Method.reply_spec`, by name.
        relay: Arrays for other clients: (recipient, name) -> array.
        state_id: Identifies the state that the client now has; the next request's `base` must match it.

    Examples:
        >>> reply = Reply({"weights": np.ones(10, np.float32), "metric.loss": np.float32([0.5])})
        >>> sorted(reply.parts)
        ['metric.loss', 'weights']
    """

    parts: Mapping[str, Array]
    relay: Mapping[tuple[str, str], Array] = field(default_factory=dict)
    state_id: bytes = NO_BASE


@dataclass(frozen=True)
class Sums:
    """The sums of all "sum" parts of a round, and the number of clients they include.

    Args:
        values: The sum of each part, by name.
        clients: Number of clients whose replies are included.

    Examples:
        >>> sums = Sums({"weights": np.array([2.0, 4.0])}, clients=2)
        >>> (sums.values["weights"] / sums.clients).tolist()
        [1.0, 2.0]
    """

    values: Mapping[str, NDArray[np.float64]]
    clients: int
