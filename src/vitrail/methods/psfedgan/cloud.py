"""What the server does with all G_s: moving averages, one generator of all, images for C_l, and exported models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.base import Model, Task
from vitrail.nets.classifier import build_classifier
from vitrail.nets.flat import from_vector
from vitrail.nets.mixture import Mixture, known_classes
from vitrail.utils.errors import Malformed
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire.codecs import Array

if TYPE_CHECKING:
    from vitrail.methods.psfedgan.algorithm import PsFedGan


def update_average(run: PsFedGan, state: State, generator: Array) -> State:
    """Add G after one more step to its moving average, from which the server samples.

    It costs no communication. The first steps are averaged with less weight on the past, so that the
    initialization is soon forgotten.
    """
    if "average" not in state:
        return {"average": np.array(generator, np.float32), "averaged": 1}
    n = state["averaged"]
    decay = np.float32(min(run.ema_decay, n / (n + 10)))
    return {"average": decay * state["average"] + (1 - decay) * generator, "averaged": n + 1}


def store_user(run: PsFedGan, server: State, client: str, user: State) -> State:
    """Replace the server's state of one client; clients are sorted, so the order of replies does not matter.

    Raises:
        Malformed: If images of the client's G are not finite: the classifier is trained on images of all G.
    """
    G = from_vector(run.generator(), user["average"]).eval()
    labels = torch.tensor(user["labels"]) if run.task.classes else None
    z = torch.randn(max(8, len(user["labels"])), run.latent_dim, generator=Rng((0,)).child("check").torch())
    with torch.no_grad():
        images = G(z, None if labels is None else labels[torch.arange(len(z)) % len(labels)])
    if not bool(torch.isfinite(images).all()):
        raise Malformed("the client's G generates images that are not finite")
    return {**server, run.clients_key: dict(sorted({**server[run.clients_key], client: user}.items()))}


def generators(run: PsFedGan, server: State) -> tuple[list[nn.Module], list[list[int]]]:
    """Return every client's averaged G and its labels."""
    users = [user for _, user in sorted(server[run.clients_key].items())]
    return [from_vector(run.generator(), u["average"]).eval() for u in users], [u["labels"] for u in users]


def mixture(run: PsFedGan, server: State) -> Mixture:
    """Build one generator from all clients' G."""
    parts, labels = generators(run, server)
    return Mixture(parts, run.latent_dim, known_classes(labels, run.task.classes))


def draw_batch(run: PsFedGan, mix: Mixture, real: State | None, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw generated and real images for C_l; every class that a generator was trained on is equally likely."""
    known = mix.knows.any(0).nonzero()[:, 0]
    size = run.classifier_batch_size
    n_real = max(1, round(size * run.real_fraction)) if real is not None and run.real_fraction else 0
    n = max(0, size - n_real)
    y = known[torch.randint(len(known), (n,), generator=draw)]
    with torch.no_grad():
        x = mix(torch.randn(n, mix.z, generator=draw), y) if n else torch.empty(0, *run.task.shape)
    x = x.nan_to_num()  # a client's G may overflow for a few z
    if real is not None and n_real:
        pick = torch.randint(len(real["pixels"]), (n_real,), generator=draw).numpy()
        images = Images(real["pixels"], real["labels"])
        x_real, y_real = gan.image_batch(images, pick, Task(run.task.shape, run.task.classes, 1, 1))
        x, y = torch.cat([x, x_real]), y if y_real is None else torch.cat([y, y_real])
    return x, y


def schedule(progress: float) -> float:
    """Return the factor of C_l's learning rate after a fraction of all steps: warm-up over 30%, then a cosine to 0."""
    if progress < 0.3:
        return 0.04 + 0.96 * progress / 0.3
    return (1 + math.cos(math.pi * (progress - 0.3) / 0.7)) / 2


def load_classifier(run: PsFedGan, state: State | None) -> tuple[nn.Module, torch.optim.AdamW]:
    """Build C_l and its optimizer; `state` is the result of the rounds before, None at first."""
    C_l = build_classifier(run.task.shape[0], run.task.classes)
    optimizer = torch.optim.AdamW(C_l.parameters(), weight_decay=run.c_weight_decay)
    if state is not None:
        from_vector(C_l, state["network"])
        gan.load_optimizer_state(optimizer, state["adam"])
    return C_l, optimizer


def export_models(run: PsFedGan, server: State) -> Mapping[str, Model]:
    """Return the mixture of all G, and C_l once it is trained."""
    parts, labels = generators(run, server)
    about = {"shape": list(run.task.shape), "classes": run.task.classes}
    tree = {**about, "width": run.width, "z": run.latent_dim, "labels": labels}
    models = {"generator": Model("mixture", {**tree, "parts": [G.state_dict() for G in parts]})}
    if server["classifier"] is not None:
        C = from_vector(build_classifier(run.task.shape[0], run.task.classes), server["classifier"]["network"])
        real = server["real"] if run.real_fraction else None
        unprotected = f"the {len(real['pixels'])} images that the server itself has" if real else ""
        models["classifier"] = Model("classifier", {**about, "weights": C.state_dict()}, unprotected)
    return models
