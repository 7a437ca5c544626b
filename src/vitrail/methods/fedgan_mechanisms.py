"""Privacy mechanisms of the federated GAN: each replaces some steps of Algorithm 1 (fedgan.py).

dp-sgd: only D is trained on images, so only its gradients on them are noised, image by image; its gradients on fakes,
and all of G's, depend on noised values alone. Fakes' gradients are clipped too, or D would learn mostly from them.
Several steps of D per step of G compensate for the noise (Bie, Kamath, Zhang; 2023).

dp-fedavg: clients train as without privacy and send the change of the trainable weights. BatchNorm's statistics are
not sent: D never uses them, and the server computes G's from random inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.base import NUM_CLIENTS, PartSpec, Sums, clip_weights
from vitrail.nets.flat import from_vector, to_vector, trainable_mask, vector_size
from vitrail.nets.masked import recalibrate
from vitrail.privacy import dpfedavg, dpsgd
from vitrail.privacy.mechanism import Mechanism
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

if TYPE_CHECKING:
    from vitrail.methods.fedgan import FedGan


@dataclass(frozen=True)
class Trained:
    """The result of a client's training."""

    nets: gan.Nets
    vectors: Mapping[str, NDArray[np.float32]]  # the networks to send; if training diverged, those it started from
    received: Mapping[str, NDArray[Any]]
    images: int
    losses: NDArray[Any]


class Steps(Protocol):
    """The steps of Algorithm 1 that a mechanism may replace; `FedGan` documents them."""

    def train(self, nets: gan.Nets, optimizers: gan.Optimizers, data: Images, rng: Rng) -> NDArray[Any]: ...
    def client_parts(self, trained: Trained) -> dict[str, NDArray[Any]]: ...
    def part_specs(self, nets: gan.Nets) -> Mapping[str, PartSpec]: ...
    def average(self, server: State, sums: Sums, rng: Rng) -> State: ...


def private_steps(run: FedGan) -> DpSgd | DpFedAvg | None:
    """Return the steps of the mechanism that `privacy` names; None without privacy."""
    return {"none": None, "dp-sgd": DpSgd(run), "dp-fedavg": DpFedAvg(run)}[run.privacy]


@dataclass(frozen=True)
class DpSgd:
    """Clients noise D's gradients. They send neither losses nor their number of images, which depend on the images."""

    run: FedGan

    def mechanism(self) -> Mechanism:
        """Return the mechanism at a noise multiplier of 1."""
        run = self.run
        with torch.device("meta"):
            dpsgd.check(run.nets()["discriminator"])
        leaves = f"{' and '.join(run.uploaded)}, trained with noised gradients"
        return dpsgd.mechanism(run.max_grad_norm, run.sample_rate, run.dp_steps, leaves)

    def train(self, nets: gan.Nets, optimizers: gan.Optimizers, data: Images, rng: Rng) -> NDArray[Any]:
        """Take dp_steps private steps of D, and a step of G after every d_steps of them."""
        run, G, D = self.run, nets["generator"], nets["discriminator"]
        assert run.mechanism is not None  # noqa: S101
        sigma, source = run.mechanism.sigma, run.source(rng.child("noise"))
        draw = rng.child("training").torch()
        for t in range(run.dp_steps):
            z, y_fake = gan.sample_latent(run.batch_size, run.latent_dim, run.task, draw)
            with torch.no_grad():
                fake = G(z, y_fake)
            real = gan.image_batch(data, dpsgd.poisson_sample(source, len(data), run.sample_rate), run.task)
            total = dpsgd.private_sum(D, loss_on_real, real, run.max_grad_norm, sigma, source)
            total += dpsgd.clipped_sum(D, loss_on_fakes, (fake, y_fake), run.max_grad_norm)
            dpsgd.set_gradient(D, total / run.batch_size)  # a public divisor, whatever number of images was drawn
            optimizers["discriminator"].step()
            if (t + 1) % run.d_steps == 0:
                z, y_fake = gan.sample_latent(run.batch_size, run.latent_dim, run.task, draw)
                gan.step(optimizers["generator"], gan.g_loss(D(G(z, y_fake), y_fake), run.g_loss))
        return np.empty(0)

    def client_parts(self, trained: Trained) -> dict[str, NDArray[Any]]:
        """Return the networks."""
        return {name: clip_weights(trained.vectors[name]) for name in self.run.uploaded}

    def part_specs(self, nets: gan.Nets) -> Mapping[str, PartSpec]:
        """Return the parts that `client_parts` sends."""
        codec, names = self.run.wire_dtype, self.run.uploaded
        return {n: PartSpec("sum", codec, vector_size(nets[n]), over=NUM_CLIENTS) for n in names}

    def average(self, server: State, sums: Sums, rng: Rng) -> State:  # noqa: ARG002
        """Return the unweighted mean of the networks."""
        return {n: clip_weights((sums.values[n] / sums.clients).astype(np.float32)) for n in self.run.uploaded}


@dataclass(frozen=True)
class DpFedAvg:
    """The server noises the sum of clipped updates of the synchronized networks."""

    run: FedGan

    def mechanism(self) -> Mechanism:
        """Return the mechanism at a noise multiplier of 1."""
        run = self.run
        if "generator" not in run.synced:
            raise VitrailError(
                f"privacy=dp-fedavg with sync={run.sync}: an update is the change of a network that was received, and "
                "here clients never take G back; use sync=d&g or sync=g, or privacy=dp-sgd"
            )
        return dpfedavg.mechanism(run.max_grad_norm, " and ".join(run.synced), bool(run.task.secagg_threshold))

    def train(self, nets: gan.Nets, optimizers: gan.Optimizers, data: Images, rng: Rng) -> NDArray[Any]:
        """Train as without privacy."""
        return self.run.train(nets, optimizers, data, rng)

    def client_parts(self, trained: Trained) -> dict[str, NDArray[Any]]:
        """Return the change of the trainable weights, clipped; a change that is not finite becomes zeros."""
        nets, received = trained.nets, trained.received
        changes = {n: to_vector(nets[n]) - received[n].astype(np.float32) for n in self.run.synced}
        update = {n: change[trainable_mask(nets[n])] for n, change in changes.items()}
        return dpfedavg.clip_update(update, self.run.max_grad_norm, self.run.wire_dtype)

    def part_specs(self, nets: gan.Nets) -> Mapping[str, PartSpec]:
        """Return the parts that `client_parts` sends."""
        size = {name: int(trainable_mask(nets[name]).sum()) for name in self.run.synced}
        return {name: PartSpec("sum", self.run.wire_dtype, n, self.run.max_grad_norm) for name, n in size.items()}

    def average(self, server: State, sums: Sums, rng: Rng) -> State:
        """Add the mean of the noised sum of updates; compute BatchNorm's statistics of G from random inputs."""
        run = self.run
        assert run.mechanism is not None  # noqa: S101
        mean = dpfedavg.mean_update(sums, run.synced, (run.mechanism.sigma, run.source(rng.child("noise"))))
        nets = {name: net for name, net in run.nets().items() if name in run.synced}
        for name, net in nets.items():
            vector = np.array(server[name], np.float64)
            vector[trainable_mask(net)] += mean[name]
            from_vector(net, vector.astype(np.float32))
        draw = rng.child("statistics").torch()
        batches = [gan.sample_latent(64, run.latent_dim, run.task, draw) for _ in range(8)]
        recalibrate(nets["generator"], [(z,) if y is None else (z, y) for z, y in batches])
        return {name: to_vector(net) for name, net in nets.items()}


def loss_on_real(D: nn.Module, x: Tensor, y: Tensor | None) -> Tensor:
    """Return -log D(x) of each image."""
    return F.softplus(-D(x, y))


def loss_on_fakes(D: nn.Module, x: Tensor, y: Tensor | None) -> Tensor:
    """Return -log(1 - D(x)) of each fake."""
    return F.softplus(D(x, y))
