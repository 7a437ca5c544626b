"""The global classifier C of PS-FedGAN: trained on samples of all G_s and on the real pictures the server holds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.base import Task
from vitrail.nets.classifier import classifier, shifted
from vitrail.nets.flat import from_vector, to_vector
from vitrail.nets.mixture import Mixture
from vitrail.utils.determinism import one_thread
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

PEAK = 4e-3  # the largest learning rate


@dataclass(frozen=True)
class ClassifierBatches:
    """What C is shown: pictures of the mixture over all G_s, and real ones where the server has any."""

    task: Task
    made: Mixture
    real: Images | None
    batch: int
    real_share: float

    def draw(self, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """One batch; a class that some generator knows is as likely as any other."""
        known = self.made.knows.any(0).nonzero()[:, 0]
        n_real = max(1, round(self.batch * self.real_share)) if self.real is not None and self.real_share else 0
        n = max(0, self.batch - n_real)
        y = known[torch.randint(len(known), (n,), generator=draw)]
        with torch.no_grad():
            x = self.made(torch.randn(n, self.made.z, generator=draw), y) if n else torch.empty(0, *self.task.shape)
        x = x.nan_to_num()  # of a client's G that overflows for some z only
        if self.real is not None and n_real:
            pick = torch.randint(len(self.real), (n_real,), generator=draw).numpy()
            x_real, y_real = gan.pictures(self.real, pick, Task(self.task.shape, self.task.classes, 1, 1))
            x, y = torch.cat([x, x_real]), y if y_real is None else torch.cat([y, y_real])
        return x, y


def rate(done: float) -> float:
    """AdamW's learning rate after a share of all steps: up over the first 30%, then down to nothing."""
    return PEAK * (0.04 + 0.96 * done / 0.3 if done < 0.3 else (1 + math.cos(math.pi * (done - 0.3) / 0.7)) / 2)


def train(kept: State | None, lessons: ClassifierBatches, steps: range, of: int, rng: Rng) -> State:
    """C after these steps of `of` in all; `kept` is what it was before them."""
    draw = rng.child("draws").torch()
    with one_thread(), torch.enable_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.child("network").seed())  # torch's layers and dropout draw from the global state
        C = classifier(lessons.task.shape[0], lessons.task.classes)
        optimizer = torch.optim.AdamW(C.parameters(), weight_decay=0.05)
        if kept is not None:
            from_vector(C, kept["network"])
            gan.restore(optimizer, kept["adam"])
        for step in steps:
            x, y = lessons.draw(draw)
            optimizer.param_groups[0]["lr"] = rate(step / of)
            gan.step(optimizer, F.cross_entropy(C(shifted(x, draw)), y, label_smoothing=0.05))
    return {"network": to_vector(C), "adam": optimizer.state_dict()["state"]}
