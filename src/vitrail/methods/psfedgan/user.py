"""The user's side of PS-FedGAN: where to go on from, and what one message says of its steps."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from vitrail.data.dataset import Images
from vitrail.engines.secagg.primitives import public
from vitrail.methods.base import Reply, ServerMessage
from vitrail.methods.psfedgan import twin as twins
from vitrail.methods.psfedgan.local_training import User, new_discriminator
from vitrail.nets.flat import from_vector, to_vector
from vitrail.utils.determinism import one_thread
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire.codecs import Array

if TYPE_CHECKING:
    from vitrail.methods.psfedgan.algorithm import PsFedGan


def as_bytes(raw: bytes) -> Array:
    """Bytes as a part holds them."""
    return np.frombuffer(raw, np.uint8)


def held(run: PsFedGan, state: State, message: ServerMessage, secret: twins.Secret, rng: Rng) -> tuple[State, bool]:
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


def train(run: PsFedGan, before: State, data: Images, seed: int, rng: Rng) -> tuple[State, Array, Array, Array]:
    """All steps of one message: what the client then has, each step's D_u, each as it is read, and mean losses."""
    coding, vectors, read = run.coding(run.architecture), [], []
    D_read = run.discriminator(run.architecture).to(run.task.device).train()

    def published(D: nn.Module) -> nn.Module:
        vectors.append(to_vector(D))  # (D_u^(t+1), z_t, l_t)
        read.append(coding.as_read(vectors[-1]))
        return from_vector(D_read, read[-1])

    with one_thread(), torch.enable_grad():
        gan = User(run, before)
        losses = np.array(list(gan.steps(data, seed, rng, published)))
    after = {**gan.state(), "generation": before["generation"]}
    return after, np.stack(vectors), np.stack(read), losses.mean(0).astype(np.float32)


def client_round(run: PsFedGan, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
    """Go on from what both sides have, and say how G_s becomes what G_u now is."""
    key, theirs = public(state["key"]), message.parts["key"].tobytes() if "key" in message.parts else b""
    secret = run.shared(state["name"], state["key"], key, theirs)
    before, back = held(run, state, message, secret, rng)
    seed, coding = rng.child("z").seed(), run.coding(run.architecture)
    after, rows, read, losses = train(run, before, data, seed, rng)
    after["digest"] = twins.digest(after, read, secret)
    after["published"] = coding.remembered(read, before["published"])
    parts: dict[str, Any] = {
        "digest": as_bytes(after["digest"]),
        "generation": np.array([after["generation"]]),
        "seed": np.array([seed], np.uint64),
        "architecture": as_bytes(run.architecture.encode()),
        "discriminators": coding.encode(rows, before["published"]),
        "metric.sent_back": np.array([back], np.float32),
    }
    if run.key_source == "agree":
        parts["key"] = as_bytes(key)
    return {**state, "now": after, "before": before}, Reply(parts | run.says_besides(data, losses))
