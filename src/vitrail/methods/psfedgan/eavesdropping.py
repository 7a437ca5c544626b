"""What an eavesdropper can do with the messages of PS-FedGAN; `vitrail audit` attacks runs through it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vitrail.methods.psfedgan import messages, twin
from vitrail.methods.psfedgan.networks import generator_state, load_generator
from vitrail.nets.flat import from_vector, to_vector
from vitrail.utils.crypto import public
from vitrail.utils.state import State
from vitrail.wire.codecs import Array

if TYPE_CHECKING:
    from vitrail.methods.psfedgan.algorithm import PsFedGan


@dataclass(frozen=True)
class Eavesdropping:
    """Read messages and repeat their steps on a generator G_A, with the secret start of G or a guessed one.

    Everything but `secret_start` uses public information only.

    Args:
        method: The method of the run; its settings are public.
    """

    method: PsFedGan

    @property
    def first_layer(self) -> Mapping[str, str]:
        """The tensor of G's first layer that each attacker of the paper has multiplied by r (section 2.3).

        A1: the weight. A2: the bias. This layer has no bias, and BatchNorm's bias starts at 0, which no r changes; the
        label's embedding e enters the first layer as W e(l), a bias per label, so A2 has r times the embedding.
        """
        weight = {"A1": "layers.0.weight"}
        return {**weight, "A2": "embed.weight"} if self.method.task.classes else weight

    @property
    def width(self) -> int:
        """The width of G."""
        return self.method.width

    @property
    def latent_dim(self) -> int:
        """The dimension of z."""
        return self.method.latent_dim

    def with_width(self, width: int) -> Eavesdropping:
        """Return the same for an attacker that assumes another width of G."""
        return Eavesdropping(replace(self.method, width=width))

    def read(self, parts: Mapping[str, Array], before: State | None) -> messages.Published:
        """Read a message, given `state()` of the client's message before it."""
        return messages.read(self.method, parts, before)

    def secret_start(self, server: State, client: str, parts: Mapping[str, Array]) -> State:
        """Return the true G before its first step, from the server's private key and the client's first message."""
        client_key = parts["key"].tobytes() if "key" in parts else b""
        secret = self.method.shared_secret(client, server["key"], client_key, public(server["key"]))
        return self.method.initial_generator(secret, 0)

    def guessed_start(self, guess: bytes) -> State:
        """Return a G before its first step, from a guessed secret."""
        return self.method.initial_generator(twin.Secret(guess, ""), 0)

    def scaled(self, start: State, tensor: str, r: float) -> State:
        """Return a start with one of its tensors multiplied by r."""
        G = from_vector(self.method.generator(), start["generator"])
        G.get_parameter(tensor).data.mul_(r)
        return {**start, "generator": to_vector(G)}

    def replay(self, state: State, message: messages.Published) -> tuple[State, float]:
        """Repeat a message's steps on G_A; return its new state and mean loss."""
        G, optimizer = load_generator(self.method, state)
        losses = list(self.method.train_cloud(G, optimizer, message))
        return generator_state(state["steps"] + len(losses), G, optimizer), float(np.mean(losses))

    @torch.no_grad()
    def sample(self, state: State, z: Tensor, labels: Tensor | None) -> Tensor:
        """Generate images in [-1, 1] from noise and labels, by G_A or by G_s."""
        device = self.method.task.device
        G = from_vector(self.method.generator().to(device), state["generator"]).eval()
        images: Tensor = G(z.to(device), None if labels is None else labels.to(device))
        return images.cpu()

    def rebuilt(self, server: State) -> Mapping[str, State]:
        """Return the server's G_s by client, with the client's `labels`."""
        return server["twins"]
