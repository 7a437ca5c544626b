"""Training of the global classifier C_l of PS-FedGAN, on samples of all G_s and the server's real images."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.base import Task
from vitrail.nets.classifier import build_classifier, random_shift
from vitrail.nets.flat import from_vector, to_vector
from vitrail.nets.mixture import Mixture
from vitrail.utils.determinism import one_thread
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

MAX_LR = 4e-3


def draw_batch(
    task: Task, mixture: Mixture, real: Images | None, batch_size: int, real_fraction: float, draw: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw one batch of generated and real images; every class that a generator was trained on is equally likely."""
    known = mixture.knows.any(0).nonzero()[:, 0]
    n_real = max(1, round(batch_size * real_fraction)) if real is not None and real_fraction else 0
    n = max(0, batch_size - n_real)
    y = known[torch.randint(len(known), (n,), generator=draw)]
    with torch.no_grad():
        x = mixture(torch.randn(n, mixture.z, generator=draw), y) if n else torch.empty(0, *task.shape)
    x = x.nan_to_num()  # a client's G may overflow for a few z
    if real is not None and n_real:
        pick = torch.randint(len(real), (n_real,), generator=draw).numpy()
        x_real, y_real = gan.image_batch(real, pick, Task(task.shape, task.classes, 1, 1))
        x, y = torch.cat([x, x_real]), y if y_real is None else torch.cat([y, y_real])
    return x, y


def learning_rate(progress: float) -> float:
    """Return AdamW's learning rate after a fraction of all steps: linear warm-up over 30%, then a cosine to zero."""
    if progress < 0.3:
        return MAX_LR * (0.04 + 0.96 * progress / 0.3)
    return MAX_LR * ((1 + math.cos(math.pi * (progress - 0.3) / 0.7)) / 2)


def train_classifier(
    state: State | None,
    task: Task,
    draw_batch: Callable[[torch.Generator], tuple[Tensor, Tensor]],
    steps: range,
    total: int,
    rng: Rng,
) -> State:
    """Train C_l for some of its `total` steps; `state` is the result of the steps before, None at first."""
    draw = rng.child("draws").torch()
    with one_thread(), torch.enable_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.child("network").seed())  # torch's initialization and dropout use the global state
        C = build_classifier(task.shape[0], task.classes)
        optimizer = torch.optim.AdamW(C.parameters(), weight_decay=0.05)
        if state is not None:
            from_vector(C, state["network"])
            gan.load_optimizer_state(optimizer, state["adam"])
        for step in steps:
            x, y = draw_batch(draw)
            optimizer.param_groups[0]["lr"] = learning_rate(step / total)
            gan.step(optimizer, F.cross_entropy(C(random_shift(x, draw)), y, label_smoothing=0.05))
    return {"network": to_vector(C), "adam": optimizer.state_dict()["state"]}
