"""How one client trains its conditional GAN, step by step (PS-FedGAN's Algorithm 1, user side)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.fedgan_mechanisms import loss_on_fakes, loss_on_real
from vitrail.nets.discriminators import initialise
from vitrail.nets.flat import from_vector, to_vector
from vitrail.privacy import dpsgd
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

if TYPE_CHECKING:
    from vitrail.methods.psfedgan.local_gan import LocalGan


class LocalTrainer:
    """G and its Adam; in PS-FedGAN on either side."""

    def __init__(self, G: nn.Module, adam: Callable[[nn.Module, State | None], torch.optim.Adam], kept: State) -> None:
        self.steps = kept["steps"]
        self.G = from_vector(G, kept["generator"]).train()
        self.optimizer = adam(self.G, kept["adam"])

    def makes(self, z: Tensor, labels: Tensor | None) -> gan.Batch:
        """G(z_t, l_t) with its graph, and l_t."""
        return self.G(z, labels), labels

    @torch.no_grad()
    def fakes(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """G(z, l) as in training, but without a trace in BatchNorm's statistics: the server does not repeat it."""
        norms = [m for m in self.G.modules() if isinstance(m, nn.BatchNorm2d)]
        for m in norms:
            m.track_running_stats = False
        made: Tensor = self.G(z, labels)
        for m in norms:
            m.track_running_stats = True
        return made

    def step(self, D: nn.Module, made: gan.Batch, form: Literal["nonsaturating", "minimax"]) -> float:
        """G^(t+1) <- F(G^(t)(z_t, l_t), D^(t+1)), the last two lines of Algorithm 1; returns G's loss.

        `made` is G^(t)(z_t, l_t) and l_t: the client has it already, since D was trained on it.
        """
        x, labels = made
        D.requires_grad_(False)  # on the client it is in training, on the server it never was: the same graph for both
        loss = gan.g_loss(D(x, labels), form)
        gan.step(self.optimizer, loss)
        D.requires_grad_(True)
        self.steps += 1
        return float(loss.detach())

    def state(self) -> State:
        """What is kept of it."""
        return {"steps": self.steps, "generator": to_vector(self.G), "adam": self.optimizer.state_dict()["state"]}


def labels_of(run: LocalGan, data: Images) -> list[int]:
    """The labels that l_t is drawn from: those of this client's pictures, or all."""
    if run.says_labels and data.labels is not None:
        return [int(y) for y in np.unique(data.labels)]
    return list(range(run.task.classes))


def train_d(
    run: LocalGan, D: nn.Module, optimizer: torch.optim.Optimizer, data: Images, fakes: gan.Batch, rng: Rng
) -> float:
    """D_u <- F(G_u(z, l), D_u): one iteration on real pictures and fakes; returns D's loss, 0 where that is private."""
    if run.mechanism is None:
        pick = rng.child("real").numpy().choice(len(data), min(run.batch_size, len(data)), replace=False)
        loss = gan.d_loss(D, gan.pictures(data, pick, run.task), fakes)
        gan.step(optimizer, loss)
        return float(loss.detach())
    source = run.source(rng.child("noise"))
    real = gan.pictures(data, dpsgd.poisson(source, len(data), run.sample_rate), run.task)
    total = dpsgd.private_sum(D, loss_on_real, real, run.max_grad_norm, run.mechanism.sigma, source)
    total += dpsgd.clipped_sum(D, loss_on_fakes, (fakes[0].detach(), fakes[1]), run.max_grad_norm)
    dpsgd.set_gradient(D, total / run.batch_size)  # a public number, however many pictures were drawn
    optimizer.step()
    return 0.0


class User:
    """One client's G_u and D_u in training."""

    def __init__(self, run: LocalGan, before: State) -> None:
        self.run, self.architecture = run, before["architecture"]
        self.learner = run.learner(before)
        D = from_vector(run.discriminator(self.architecture), before["discriminator"])
        self.D = D.to(run.task.device).train()
        self.optimizer = run.adam(self.D, before["d_adam"], run.d_lr)

    def steps(
        self, data: Images, seed: int, rng: Rng, as_read: Callable[[nn.Module], nn.Module] = lambda D: D
    ) -> Iterator[tuple[float, float]]:
        """All steps of one message; gives losses of G and D after each.

        `as_read` makes of D_u what its reader will have, which is what G_u learns from.
        """
        run, labels = self.run, labels_of(self.run, data)
        for t in range(run.steps_per_message):
            for j in range(run.d_steps - 1, 0, -1):
                z, y = run.noise(seed, t, labels, j)
                train_d(run, self.D, self.optimizer, data, (self.learner.fakes(z, y), y), rng.child("step", t, j))
            made = self.learner.makes(*run.noise(seed, t, labels))  # D's last iteration is on G_u(z_t, l_t) itself
            loss_d = train_d(run, self.D, self.optimizer, data, made, rng.child("step", t, 0))
            self._check(self.D)
            loss_g = self.learner.step(as_read(self.D), made, run.g_loss)
            self._check(self.learner.G)
            yield loss_g, loss_d

    def _check(self, net: nn.Module) -> None:
        if not np.isfinite(to_vector(net)).all():
            raise VitrailError("its GAN is no longer finite; lower lr")

    def state(self) -> State:
        """What the client keeps of it."""
        own = {"discriminator": to_vector(self.D), "d_adam": self.optimizer.state_dict()["state"]}
        return {**self.learner.state(), "architecture": self.architecture, **own}


def new_discriminator(run: LocalGan, rng: Rng) -> State:
    """The part of a client's state that is a D_u before its first step."""
    D = initialise(run.discriminator(run.architecture), rng.child("discriminator").torch())
    return {"architecture": run.architecture, "discriminator": to_vector(D), "d_adam": None}
