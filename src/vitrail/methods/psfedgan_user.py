"""The user's side of PS-FedGAN: where to go on from, D_u's training, and one message's steps."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from vitrail.data.pictures import Pictures
from vitrail.determinism import one_thread
from vitrail.errors import VitrailError
from vitrail.methods import gan
from vitrail.methods import psfedgan_twin as twins
from vitrail.methods.base import Incoming, Reply
from vitrail.methods.fedgan_private import loss_on_fakes, loss_on_real
from vitrail.nets.discriminators import initialise
from vitrail.nets.flat import from_vector, to_vector
from vitrail.privacy import dpsgd
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
        D = initialise(run.discriminator(run.architecture), rng.child("discriminator").torch())
        new = {"architecture": run.architecture, "discriminator": to_vector(D), "d_adam": None, "published": None}
        found = {**found, **new}
    return found, back


def labels_of(run: PsFedGan, data: Pictures) -> list[int]:
    """The labels that l_t is drawn from: those of this client's pictures, or all."""
    if run.says_labels and data.labels is not None:
        return [int(y) for y in np.unique(data.labels)]
    return list(range(run.task.classes))


def train_d(
    run: PsFedGan, D: nn.Module, optimizer: torch.optim.Optimizer, data: Pictures, fakes: gan.Batch, rng: Rng
) -> float:
    """D_u <- F(G_u(z, l), D_u): one iteration on real pictures and fakes; returns D's loss, 0 where that is private."""
    if run.mechanism is None:
        pick = rng.child("real").numpy().choice(len(data), min(run.batch, len(data)), replace=False)
        loss = gan.d_loss(D, gan.pictures(data, pick, run.task), fakes)
        gan.step(optimizer, loss)
        return float(loss.detach())
    source = run.source(rng.child("noise"))
    real = gan.pictures(data, dpsgd.poisson(source, len(data), run.sample_rate), run.task)
    total = dpsgd.private_sum(D, loss_on_real, real, run.clip, run.mechanism.sigma, source)
    total += dpsgd.clipped_sum(D, loss_on_fakes, (fakes[0].detach(), fakes[1]), run.clip)
    dpsgd.set_gradient(D, total / run.batch)  # a public number, however many pictures were drawn
    optimizer.step()
    return 0.0


def steps(run: PsFedGan, before: State, data: Pictures, seed: int, rng: Rng) -> tuple[State, Array, Array]:
    """All steps of one message: what the client then has, each step's D_u, and mean losses of G and D."""
    labels, vectors, losses = labels_of(run, data), [], []
    with one_thread(), torch.enable_grad():
        twin = run.twin(before)
        D = from_vector(run.discriminator(run.architecture), before["discriminator"]).to(run.task.device).train()
        optimizer = run.adam(D, before["d_adam"], run.d_lr)
        for t in range(run.steps):
            for j in range(run.d_steps - 1, 0, -1):
                z, y = run.noise(seed, t, labels, j)
                train_d(run, D, optimizer, data, (twin.fakes(z, y), y), rng.child("step", t, j))
            made = twin.makes(*run.noise(seed, t, labels))  # the last iteration of D is on G_u(z_t, l_t) itself
            loss_d = train_d(run, D, optimizer, data, made, rng.child("step", t, 0))
            vectors.append(to_vector(D))  # published: (D_u^(t+1), z_t, l_t)
            losses.append((twin.step(D, made, run.g_loss), loss_d))
    after = {**twin.state(), "architecture": run.architecture}
    after |= {"discriminator": vectors[-1], "d_adam": optimizer.state_dict()["state"]}
    rows = np.stack(vectors)
    if not (twins.finite(after) and np.isfinite(rows).all()):
        raise VitrailError("its GAN is no longer finite; lower lr")
    return after, rows, np.stack(losses).mean(0).astype(np.float32)


def client_round(run: PsFedGan, state: State, message: Incoming, data: Pictures, rng: Rng) -> tuple[State, Reply]:
    """Go on from what both sides have, and say how G_s becomes what G_u now is."""
    key = public(state["key"])
    secret = twins.secret_between(state["key"], key, message.parts["key"].tobytes(), state["name"])
    before, back = held(run, state, message, secret, rng)
    seed = rng.child("z").seed()
    after, rows, losses = steps(run, before, data, seed, rng)
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
    if run.says_labels:
        parts["labels"] = np.isin(np.arange(run.task.classes), labels_of(run, data))
    if run.mechanism is None:
        parts |= {"metric.loss_g": losses[:1], "metric.loss_d": losses[1:]}
    return {**state, "now": after, "before": before}, Reply(parts)
