"""What a method is: what each side does with a message. It never learns which engine carries them.

A method is a frozen dataclass: its settings, and the `Task` both sides know. Its functions take state and return
state; state is a dict of arrays and plain values that can be saved at any time. All randomness comes through `rng`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from vitrail.data.dataset import Images
from vitrail.privacy.mechanism import Mechanism
from vitrail.utils.rng import Rng
from vitrail.wire.codecs import Array
from vitrail.wire.message import NO_BASE

if TYPE_CHECKING:  # it brings torch, and a node that is asked who it is answers sooner without
    from vitrail.utils.state import State


@dataclass(frozen=True)
class Task:
    """What every party knows before the first message: the pictures' shape, the labels, how long and how many."""

    shape: tuple[int, int, int]
    classes: int  # 0: unlabelled
    rounds: int
    clients: int  # how many there are in all; bounds counts
    device: str = "cpu"
    secagg_threshold: int = 0  # secure aggregation: how many clients must remain to open a sum; 0: off
    noise_source: Literal["seed", "os"] = "seed"  # where noise comes from: the run's seed (a simulation), or the system
    aggregation: Literal["mean", "median", "trimmed_mean"] = "mean"  # of what the server averages over clients
    trim: float = 0.1  # trimmed_mean: share of the replies that is removed at either end
    images: int = 0  # most images of any client, where the server knows it (in simulation); 0: unknown


NUM_CLIENTS = "clients"  # in place of a part's name in `PartSpec.over`: the number of clients that replied


MAX_VALUE = 2.0**16  # largest magnitude of a float in a reply, where a method declares no other
MAX_WEIGHT = 65504.0  # largest magnitude of a weight that the server averages: float16's largest, so that it can travel


@dataclass(frozen=True)
class PartSpec:
    """A promise about one part of a reply; what is not declared does not leave the client.

    `sum`: added up as it arrives, in 64-bit fixed point, so that any order of clients gives the same bits; the
    server never needs to see a single client's. `each`: handed to `receive`. `relay`: for another client; the
    server checks its shape and range, and uses it for nothing.
    """

    how: Literal["sum", "each", "relay"]
    codec: str
    size: int | None  # number of elements; None: any, up to `limit_bytes`, and an empty part has the shape (0,)
    limit: float = MAX_VALUE  # largest magnitude of an element of a sum, or of a float; a larger one is refused
    least: float = -math.inf  # the smallest such element, where it is not minus the limit
    limit_bytes: int = 2**28  # of a part of any size; one of a known size has room for its elements
    unpack: Callable[[State, Array], Array] | None = None  # from bytes, coded under the server's state, to the numbers
    numbers: int | None = None  # how many an `each` part stands for that is coded to bytes
    over: str = ""  # what the method divides a sum by: a part such as `weight`, or NUM_CLIENTS; empty: it is no mean
    shape: tuple[int | None, ...] = (None,)  # what it has on the wire; None: any length that fits the size

    def has_shape(self, shape: tuple[int, ...]) -> bool:
        """Whether a part of this shape on the wire is what was declared."""
        if self.size is None and shape == (0,):
            return True
        if self.size is not None and self.unpack is None and math.prod(shape) != self.size:
            return False
        return len(shape) == len(self.shape) and all(
            want in (None, n) for n, want in zip(shape, self.shape, strict=True)
        )

    @property
    def most_bytes(self) -> int:
        """How many bytes of it are taken, coded in whatever way."""
        return self.limit_bytes if self.size is None else 16 * self.size + 2**10

    @property
    def bits(self) -> bool:
        """Whether every element is 0 or 1."""
        return (self.least, self.limit) == (0, 1) and not self.codec.startswith("float")


@dataclass(frozen=True)
class Broadcast:
    """What the server tells a client: codec and array by name, and the state it builds on."""

    parts: Mapping[str, tuple[str, Array]]
    base: bytes = NO_BASE
    numbers: Mapping[str, int] = field(default_factory=dict)  # how many a part stands for that is coded to bytes


LAST_COUNTED = "counted"  # the part of a request that names the round of the client's last reply that counted


@dataclass(frozen=True)
class ServerMessage:
    """What a client was told, decoded; `relayed` holds what other clients sent it: (sender, name) -> array."""

    round: int
    parts: Mapping[str, Array]
    relayed: Mapping[tuple[str, str], Array] = field(default_factory=dict)
    exchange: int = 0  # of several in a round


@dataclass(frozen=True)
class Reply:
    """What a client says: its declared parts by name, and parts for other clients: (recipient, name) -> array."""

    parts: Mapping[str, Array]
    relay: Mapping[tuple[str, str], Array] = field(default_factory=dict)
    holds: bytes = NO_BASE  # names the state this client now has, to be matched with the next message's base


@dataclass(frozen=True)
class Sums:
    """The sums of all `sum` parts of a round, and how many clients they come from."""

    values: Mapping[str, NDArray[np.float64]]
    clients: int


@dataclass(frozen=True)
class Model:
    """Something a run produces, ready to be written to a file; `kind` names the reader (see artifact.py)."""

    kind: str
    tree: State
    unprotected: str = (
        ""  # private data that it has seen without noise, whatever the run's mechanism: it is not private
    )


class Method(Protocol):
    """The two halves of a method; docs/design.md lists the calls."""

    @property
    def task(self) -> Task: ...

    @property
    def mechanism(self) -> Mechanism | None:
        """What protects the data in what leaves a client; None: nothing does."""
        ...

    @property
    def delta(self) -> float: ...

    @property
    def max_replies(self) -> int: ...

    @property
    def needs_ack(self) -> bool:
        """Whether requests say, as the part `LAST_COUNTED`, which of a client's replies was the last that
        counted: for methods whose clients must know whether what they sent was lost."""
        ...

    @property
    def num_async_rounds(self) -> int:
        """In how many of the first rounds no client waits for another: each is asked again once its reply is in.

        There, what `broadcast` tells a client and what `receive` makes of its reply must follow from this client's
        own replies; `receive` changes nothing that another client's does, refuses what is not finite, and leaves the
        same state, order of a dict included, in whatever order clients come. Rounds are opened, and closed, in their
        order, but some are open at once.
        """
        ...

    def with_client_overrides(self, wishes: Mapping[str, str]) -> Method:
        """The method as a client plays it whose owner has wishes of its own; those it does not know change nothing."""
        ...

    def reply_spec(self) -> Mapping[str, PartSpec]:
        """Every part a reply may have. Parts named `metric.*` are means over clients that a person may watch."""
        ...

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:
        """The server's first state; `data` is what the server itself holds, `start` an earlier run's state."""
        ...

    def client_init(self, client: str, rng: Rng) -> State:
        """A client's first private state."""
        ...

    def start_round(self, server: State, clients: Sequence[str], rng: Rng) -> tuple[State, Sequence[str]]:
        """Prepare a round and say who takes part; nobody makes it a round of the server alone."""
        ...

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:
        """What this client is told. An array that is the same object for many clients is encoded once."""
        ...

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """A client's work of one round: the only function that sees private pictures."""
        ...

    def receive(self, server: State, client: str, parts: Mapping[str, Array]) -> State:
        """Take one client's `each` parts; called in a fixed order of clients.

        Raising Malformed refuses the whole reply: the client is left out with that reason, its sums with it.
        """
        ...

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """End the round with the sums of all clients that answered."""
        ...

    def export_models(self, server: State, client: State | None = None) -> Mapping[str, Model]:
        """What the run has made so far: a `generator`, perhaps a `classifier`; with a client's state, its own."""
        ...


class BaseMethod:
    """The calls most methods leave as they are: everyone asked takes part and all parts are sums."""

    task: Task
    delta: float = 1e-5

    @property
    def max_replies(self) -> int:
        return self.task.rounds

    @property
    def mechanism(self) -> Mechanism | None:
        return None

    @property
    def needs_ack(self) -> bool:
        return False

    @property
    def num_async_rounds(self) -> int:
        return 0

    def with_client_overrides(self, wishes: Mapping[str, str]) -> Self:  # noqa: ARG002
        return self

    def client_init(self, client: str, rng: Rng) -> State:  # noqa: ARG002
        return {}

    def start_round(self, server: State, clients: Sequence[str], rng: Rng) -> tuple[State, Sequence[str]]:  # noqa: ARG002
        return server, clients

    def receive(self, server: State, client: str, parts: Mapping[str, Array]) -> State:
        raise NotImplementedError(f"{type(self).__name__} declares no part for {client}'s {sorted(parts)}")


def clip_weights(vector: NDArray[Any]) -> NDArray[Any]:
    """Clip averaged weights to MAX_WEIGHT, so that they cannot grow from round to round until they overflow.

    Weights of ordinary networks are far below it: they keep their bits. What is not finite stays so: such a round is
    void.
    """
    found: NDArray[Any] = np.where(np.isfinite(vector), np.clip(vector, -MAX_WEIGHT, MAX_WEIGHT), vector)
    return found


def is_sendable(*arrays: NDArray[Any]) -> bool:
    """Whether a client can send these: every element is finite and not beyond MAX_WEIGHT."""
    return all(bool((np.abs(a) <= MAX_WEIGHT).all()) for a in arrays)


def fixed_point_scale(limit: float, clients: int) -> float:
    """The power of two by which a sum part is multiplied before it is rounded to a 64-bit integer.

    It is the largest for which all clients at the limit together cannot overflow.

    >>> fixed_point_scale(1.0, 1000) == 2.0**52
    True
    """
    return float(2.0 ** (62 - math.ceil(math.log2(clients)) - math.ceil(math.log2(limit))))
