"""The interface of a method: what the server does and what a client does. It is independent of any engine.

A method is a frozen dataclass that derives from `BaseMethod`; its fields are its settings. Its functions take state and
return state, a dict of arrays and plain values that can be saved at any time. All randomness comes from `rng`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from vitrail.data.dataset import Images
from vitrail.methods.messages import MAX_WEIGHT, UNSET_TASK, Broadcast, PartSpec, Reply, ServerMessage, Sums, Task
from vitrail.models.model import Model
from vitrail.privacy.mechanism import Mechanism
from vitrail.utils.registry import added_entries, restore_entries
from vitrail.utils.rng import Rng
from vitrail.wire.codecs import Array

if TYPE_CHECKING:  # they import torch; a node that only describes itself starts faster without it
    from torch import nn

    from vitrail.methods.audit_hooks import Eavesdropping, NoisedMasks, SentDiscriminator
    from vitrail.nets.spectral_discriminator import SpectralDiscriminator
    from vitrail.privacy.feature_sums import Summary
    from vitrail.utils.state import State

    ContentStyleModels = tuple[Model, SpectralDiscriminator, SpectralDiscriminator]

__all__ = [
    "MAX_WEIGHT", "UNSET_TASK", "BaseMethod", "Broadcast", "Method", "Model", "PartSpec", "Reply", "ServerMessage",
    "Sums", "Task", "clip_weights", "fixed_point_scale", "is_sendable", "setting",
]  # fmt: skip

T = TypeVar("T")


def setting(default: T, description: str, *, check: Callable[[str], str] | None = None, **bounds: float) -> T:
    """Declare a field of a method with what `vitrail list` shows about it, and what is checked.

    Args:
        default: The field's default.
        description: One line. It may end with the paper's value, "(paper: VALUE)", that of its published code,
            "(published code: VALUE)", or "(ours)" for a setting that the paper does not have.
        check: Returns the value or raises ValueError. With the `check` of a registry the setting is one of its names,
            or, from Python, a class.
        **bounds: `ge`, `gt`, `le` or `lt`.

    Returns:
        A dataclass field.

    Examples:
        >>> from vitrail.experiment.settings import settings_model
        >>> settings_model("fedgan").model_fields["lr"].description
        "Adam's learning rate (paper: 0.0002)"
    """
    return field(default=default, metadata={"description": description, "check": check, **bounds})


@dataclass(frozen=True)
class BaseMethod(ABC):
    """A federated method, with defaults for everything that it need not define.

    A subclass is a frozen dataclass whose fields are the method's settings. It defines the six abstract calls and
    overrides any of the other members. examples/fedavg_vae.py is a complete method.

    One round of a run makes these calls:

    1. server: `broadcast` for each selected client,
    2. each client: `client_round`, the only call that sees private images,
    3. server: `finish_round` with the sums of the replies.

    Before the first round the server calls `server_init`; after the last, and where a run is evaluated, it calls
    `export_models`. `reply_spec` declares what a client may send.

    Return a new state; never change `server`, a client's state or another argument in place. A discarded round and a
    refused reply must leave no trace.

    Args:
        task: Image shape, number of classes, rounds and clients; the run sets it.

    Examples:
        One round with one client, without an engine:

        >>> from vitrail.methods.baselines.fedavg import FedAvg
        >>> method = FedAvg(Task((1, 8, 8), classes=2, rounds=1, clients=1), local_steps=1)
        >>> server = method.server_init(Rng((0,)))
        >>> request = method.broadcast(server, "a", full=True)
        >>> message = ServerMessage(0, {name: array for name, (_, array) in request.parts.items()})
        >>> images = Images(np.zeros((4, 1, 8, 8), np.uint8), np.array([0, 1, 0, 1]))
        >>> state, reply = method.client_round(method.client_init("a", Rng((1,))), message, images, Rng((2,)))
        >>> sorted(reply.parts) == sorted(method.reply_spec())
        True
        >>> server = method.finish_round(server, Sums(reply.parts, clients=1), Rng((3,)))
        >>> method.export_models(server)["classifier"].kind
        'classifier'
    """

    task: Task = field(default=UNSET_TASK, kw_only=True, repr=False)
    """Image shape, number of classes, rounds and clients; the run sets it."""

    defaults: ClassVar[Mapping[str, Any]] = {}
    """Defaults of common settings where this method's differ, such as {"rounds": 60}."""

    added_later: ClassVar[Mapping[str, Any]] = {}
    """Settings added after the method was released, with the values at which earlier runs keep their id.

    Not inherited: a subclass lists its own.
    """

    mechanisms: ClassVar[tuple[str, ...]] = ()
    """Values of the setting `privacy` that add noise; empty if the method has no private variant."""

    @abstractmethod
    def reply_spec(self) -> Mapping[str, PartSpec]:
        """Declare every part of a reply, by name.

        Parts named `metric.*` are averaged over clients and written to the run's metrics.

        Returns:
            The declaration of each part.
        """

    @abstractmethod
    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:
        """Return the server's first state.

        Args:
            rng: Source of randomness.
            data: The server's own images, with `server_fraction=`.
            start: The server's last state of an earlier run, with `init_from=`.

        Returns:
            Arrays and plain values, by name.
        """

    @abstractmethod
    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:
        """Return the request to one client. An array that is the same object for many clients is encoded once.

        Args:
            server: The server's state.
            client: The client's name.
            full: Whether the client has no state of this run yet, so the request must contain all it needs.

        Returns:
            The parts to send, with the codec of each.
        """

    @abstractmethod
    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Run one client's part of a round.

        Args:
            state: The client's private state: that of `client_init` or of its last round. It never leaves the client,
                and stays unchanged: `Optimizer.load_state_dict` needs a copy.
            message: The decoded request.
            data: The client's private images.
            rng: Source of randomness.

        Returns:
            The client's new private state, and its reply.
        """

    @abstractmethod
    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """Return the server's state after a round, from the sums of all replies.

        Return a new state; never change `server` in place, or a discarded round is not discarded.

        Args:
            server: The server's state, with the "each" parts that `receive` added.
            sums: The sums of the "sum" parts, and the number of clients that they include.
            rng: Source of randomness.

        Returns:
            The new state; if it is not finite, the round is discarded.
        """

    @abstractmethod
    def export_models(self, server: State, client: State | None = None) -> Mapping[str, Model]:
        """Return the models trained so far, from the first state on: a "generator", a "classifier", or both.

        Args:
            server: The server's state.
            client: A client's private state, for that client's personal models.

        Returns:
            The models by name.
        """

    @property
    def has_personal_models(self) -> bool:
        """Whether `export_models` returns a different generator for each client's private state."""
        return False

    @property
    def privacy(self) -> str:
        """Name of the mechanism that protects the data, a setting of methods with private variants; "none": none."""
        return "none"

    @property
    def mechanism(self) -> Mechanism | None:
        """The mechanism that protects the data in what leaves a client; None: the run is not private."""
        return None

    @property
    def delta(self) -> float:
        """δ at which ε is stated."""
        return 1e-5

    @property
    def max_replies(self) -> int:
        """Largest number of replies of one client in a run; privacy is accounted for this number."""
        return self.task.rounds

    @property
    def max_images_per_client(self) -> int | None:
        """Largest number of images of one client that the method uses; None: all of them."""
        return None

    @property
    def feature_network(self) -> str:
        """Name of the feature network that the method trains against; it may not evaluate the run. Empty: none."""
        return ""

    @property
    def needs_ack(self) -> bool:
        """Whether requests contain the part LAST_COUNTED: the round of the client's last reply that was aggregated.

        For methods whose clients must know whether their last reply was lost.
        """
        return False

    @property
    def num_async_rounds(self) -> int:
        """Number of first rounds in which clients do not wait for each other.

        In these rounds a client is sent its next request as soon as its reply has arrived. What `broadcast` sends a
        client and how `receive` changes the state must depend only on this client's replies; `receive` must refuse
        values that are not finite, and leave the same state for any order of clients.
        """
        return 0

    def __getstate__(self) -> dict[str, Any]:
        """Send registered classes along: a worker process must know a generator that this process registered."""
        return {**vars(self), "registered": added_entries()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        restore_entries(state.pop("registered", ()))
        vars(self).update(state)

    def auto_settings(self, data: str) -> Mapping[str, Any]:  # noqa: ARG002
        """Return values for settings of "auto" that depend on the data.

        Args:
            data: Name of the dataset.

        Returns:
            Values by the name of the setting.
        """
        return {}

    def with_client_overrides(self, wishes: Mapping[str, str]) -> Self:  # noqa: ARG002
        """Return the method with settings that the owner of a client chose; unknown ones are ignored.

        Args:
            wishes: Values by the name of the setting, such as `{"discriminator": "dense:64"}` of a node's config.

        Returns:
            The method with which this client answers.

        Raises:
            VitrailError: If a value is not valid.
        """
        return self

    def client_init(self, client: str, rng: Rng) -> State:  # noqa: ARG002
        """Return a client's first private state.

        Args:
            client: The client's name.
            rng: Source of randomness, different for each client.

        Returns:
            Arrays and plain values, by name; they are stored on the client only.
        """
        return {}

    def start_round(self, server: State, clients: Sequence[str], rng: Rng) -> tuple[State, Sequence[str]]:  # noqa: ARG002
        """Prepare a round.

        Args:
            server: The server's state.
            clients: The clients selected for the round.
            rng: Source of randomness.

        Returns:
            The server's state, and the clients that take part; with none, the server runs the round alone.
        """
        return server, clients

    def receive(self, server: State, client: str, parts: Mapping[str, Array]) -> State:
        """Return the server's state with one client's "each" parts. Clients come in a fixed order.

        Never change `server` in place, or a refused reply leaves a trace.

        Args:
            server: The server's state.
            client: The client's name.
            parts: The client's "each" parts, by name, checked against `reply_spec`.

        Returns:
            The new state.

        Raises:
            Malformed: To refuse the reply: the client is excluded from the round, and its sums with it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no receive() for {client}'s parts {sorted(parts)}")

    @property
    def separates_style(self) -> bool:
        """Whether content is shared by all clients and style is private to each: `content_style_models` is defined."""
        return False

    def content_style_models(self, server: State, client: State | None = None) -> ContentStyleModels:
        """Return a client's generator, the content discriminator and the client's style discriminator, for analysis.

        Args:
            server: The server's state.
            client: The client's private state; None: the private networks before the first round.

        Returns:
            The generator as a `Model`, and both discriminators as torch modules.

        Raises:
            NotImplementedError: If the method does not separate content from style.
        """
        raise NotImplementedError(f"{type(self).__name__} does not separate content from style")

    def for_audit(self) -> Self:
        """Return the method with settings that show more of what the mechanism releases, or take less time to attack.

        The mechanism and what it releases must stay the same.

        Returns:
            The method to attack; by default the method itself.
        """
        return self

    def eavesdropping(self) -> Eavesdropping | None:
        """Return what a reader of all messages can do; None: the server rebuilds no secret generators from them.

        Returns:
            What eavesdroppers do with messages (`vitrail.methods.audit_hooks.Eavesdropping`), or None.
        """
        return None

    def feature_summary(self) -> Summary | None:
        """Return what clients sum of an image, for audits; None: they do not release sums of features once.

        Returns:
            The sums of one image's features, or None.
        """
        return None

    def released_sums(self, parts: Mapping[str, Array], state: State) -> Array:  # noqa: ARG002
        """Return the sums of `feature_summary` that a client released, for audits; by default its reply's part `sums`.

        Args:
            parts: The client's reply.
            state: The client's private state after it.

        Returns:
            The released vector.
        """
        return parts["sums"]

    def noised_masks(self) -> NoisedMasks | None:
        """Return how clients draw masks from noisy probabilities, for audits; None: no bits of such masks are sent.

        Returns:
            The sampling of masks (`vitrail.methods.audit_hooks.NoisedMasks`), or None.
        """
        return None

    def sent_discriminator(self) -> SentDiscriminator | None:
        """Return how a reply shows the discriminator that a client trained without noise, for audits; None: not.

        Returns:
            A reader of replies (`vitrail.methods.audit_hooks.SentDiscriminator`), or None.
        """
        return None

    def nets(self) -> Mapping[str, nn.Module]:
        """Return new networks, by the names under which the server's state has their weights, for audits.

        Returns:
            Networks by name; by default none.
        """
        return {}


Method = BaseMethod
"""Any federated method; the name by which engines refer to it."""


def clip_weights(vector: NDArray[Any]) -> NDArray[Any]:
    """Clip averaged weights to MAX_WEIGHT, so that they cannot grow until they overflow.

    Weights of ordinary networks are far below it and keep their bits. Values that are not finite stay so: the round is
    discarded.
    """
    return np.where(np.isfinite(vector), np.clip(vector, -MAX_WEIGHT, MAX_WEIGHT), vector)


def is_sendable(*arrays: NDArray[Any]) -> bool:
    """Return whether every element is finite and at most MAX_WEIGHT."""
    return all(bool((np.abs(a) <= MAX_WEIGHT).all()) for a in arrays)


def fixed_point_scale(limit: float, clients: int) -> float:
    """Return the power of two by which a sum part is multiplied before it is rounded to a 64-bit integer.

    It is the largest for which the sum of all clients at the limit cannot overflow.

    Examples:
        >>> fixed_point_scale(1.0, 1000) == 2.0**52
        True
    """
    return float(2.0 ** (62 - math.ceil(math.log2(clients)) - math.ceil(math.log2(limit))))
