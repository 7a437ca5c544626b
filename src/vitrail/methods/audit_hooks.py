"""What methods offer to audits: the types that hooks of `BaseMethod` return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.methods.messages import ServerMessage
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire.codecs import Array
from vitrail.wire.scores import Scores


class NoisedMasks(Protocol):
    """How a method's clients draw masks from noised probabilities θ (`Method.noised_masks`)."""

    @property
    def sampling(self) -> str: ...
    @property
    def theta_clip(self) -> float: ...
    @property
    def split(self) -> tuple[slice, slice]: ...
    def uniform(self, message: ServerMessage, rng: Rng) -> Tensor: ...
    def upload(self, s: Tensor, s_t: Scores, message: ServerMessage, rng: Rng) -> dict[str, Array]: ...


class SentDiscriminator(Protocol):
    """How replies show the D that a client trained (`Method.sent_discriminator`); `Method.nets` has G and D."""

    def read_discriminator(self, parts: Mapping[str, Array]) -> NDArray[Any]:
        """Return the weights of D after training, from a reply."""

    def image_loss(self, D: nn.Module, x: Tensor, y: Tensor | None, real: bool) -> Tensor:
        """Return D's loss on real images, or on fakes."""


class Eavesdropping(Protocol):
    """What eavesdroppers can do with messages (`Method.eavesdropping`). Only `secret_start` is private."""

    @property
    def first_layer(self) -> Mapping[str, str]:
        """The tensor that each attacker of the paper has multiplied by r, by the attacker's name."""

    @property
    def width(self) -> int:
        """The width of the secret generator."""

    @property
    def latent_dim(self) -> int:
        """The dimension of its noise."""

    def with_width(self, width: int) -> Eavesdropping:
        """Return the same for an attacker that assumes another width."""

    def read(self, parts: Mapping[str, Array], before: State | None) -> Any:
        """Read a message, given `state()` of the message before it."""

    def secret_start(self, server: State, client: str, parts: Mapping[str, Array]) -> State:
        """Return the true generator before its first step, from the server's state and a client's first message."""

    def guessed_start(self, guess: bytes) -> State:
        """Return a generator before its first step, from a guessed secret."""

    def scaled(self, start: State, tensor: str, r: float) -> State:
        """Return a start with one tensor multiplied by r."""

    def replay(self, state: State, message: Any) -> tuple[State, float]:
        """Repeat a message's steps; return the generator's new state and its mean loss."""

    def sample(self, state: State, z: Tensor, labels: Tensor | None) -> Tensor:
        """Generate images in [-1, 1] from noise and labels."""

    def rebuilt(self, server: State) -> Mapping[str, State]:
        """Return the server's generators by client, with the client's `labels`."""
