"""The user's side of PS-FedGAN: where to go on from, and what one message says of its steps."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from vitrail.data.pictures import Pictures
from vitrail.determinism import one_thread
from vitrail.methods import psfedgan_twin as twins
from vitrail.methods.base import Incoming, Reply
from vitrail.methods.localgan_training import User, new_discriminator
from vitrail.nets.flat import to_vector
from vitrail.privacy.primitives import public
from vitrail.rng import Rng
from vitrail.state import State
from vitrail.wire import deltas
from vitrail.wire.codecs import Array

if TYPE_CHECKING:
    from vitrail.methods.psfedgan import PsFedGan


def as_bytes(raw: bytes) -> Array:
    """Bytes as a part holds them."""
    return np.frombuffer(raw, np.uint8)


def held(run: PsFedGan, state: State, message: Incoming, secret: twins.Secret, rng: Rng) -> tuple[State, bool]:
    """What to go on from, which the server has too; and whether it is not where this client was."""
    agreed = message.parts["agreed"].tobytes() if "agreed" in message.parts else b""
    for which in ("now", "before"):
        if agreed and state[which] and hmac.compare_digest(state[which]["digest"], agreed):
            found, back = state[which], which == "before"
            break
    else:
        generation = int(message.parts["generation"][0]) + bool(agreed)  # lost what was agreed on: the next seed
        found = {**twins.begin(run.generator(), secret, generation), "digest": b"", "architecture": ""}
        back = bool(agreed) or state["now"] is not None
    if found["architecture"] != run.architecture:  # a new beginning, or this client now prefers another D_u
        found = {**found, **new_discriminator(run, rng), "published": None}
    return found, back


def train(run: PsFedGan, before: State, data: Pictures, seed: int, rng: Rng) -> tuple[State, Array, Array]:
    """All steps of one message: what the client then has, each step's D_u, and mean losses of G and D."""
    vectors: list[Array] = []

    def published(D: nn.Module) -> nn.Module:
        vectors.append(to_vector(D))  # (D_u^(t+1), z_t, l_t)
        return D

    with one_thread(), torch.enable_grad():
        gan = User(run, before)
        losses = list(gan.steps(data, seed, rng, published))
    return (
        {**gan.state(), "generation": before["generation"]},
        np.stack(vectors),
        np.array(losses).mean(0).astype(np.float32),
    )


def client_round(run: PsFedGan, state: State, message: Incoming, data: Pictures, rng: Rng) -> tuple[State, Reply]:
    """Go on from what both sides have, and say how G_s becomes what G_u now is."""
    key = public(state["key"])
    secret = twins.secret_between(state["key"], key, message.parts["key"].tobytes(), state["name"])
    before, back = held(run, state, message, secret, rng)
    seed = rng.child("z").seed()
    after, rows, losses = train(run, before, data, seed, rng)
    after["digest"] = twins.digest(after, rows, secret)
    after["published"] = run.remembered(rows, before["published"])
    parts: dict[str, Any] = {
        "digest": as_bytes(after["digest"]),
        "key": as_bytes(key),
        "generation": np.array([after["generation"]]),
        "seed": np.array([seed], np.uint64),
        "architecture": as_bytes(run.architecture.encode()),
        "discriminators": rows if run.d_coding == "plain" else as_bytes(deltas.encode(rows, before["published"])),
        "metric.sent_back": np.array([back], np.float32),
    }
    return {**state, "now": after, "before": before}, Reply(parts | run.says_besides(data, losses))
