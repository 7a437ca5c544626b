"""How the federated GAN keeps pictures, or clients, private.

dp-sgd: only D sees pictures, so only its gradient on them is made private, picture by picture; its gradient on fakes,
and all of G's, come from what is private already. Fakes' gradients are clipped alike, or D would learn mostly from
them. Several steps of D to one of G make up for the noise (Bie, Kamath, Zhang; 2023).

dp-fedavg: a client trains as ever and sends what changed, weights alone: BatchNorm's statistics of D are never used,
and those of G are computed by the server from noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.base import Sums, Task
from vitrail.nets.flat import from_vector, to_vector, trainable_mask
from vitrail.nets.masked import recalibrate
from vitrail.privacy import dpfedavg, dpsgd
from vitrail.privacy.noise import Source
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

if TYPE_CHECKING:
    from vitrail.methods.fedgan import FedGan


def loss_on_real(D: nn.Module, x: Tensor, y: Tensor | None) -> Tensor:
    """-log D(x), by picture."""
    return F.softplus(-D(x, y))


def loss_on_fakes(D: nn.Module, x: Tensor, y: Tensor | None) -> Tensor:
    """-log(1 - D(x)), by fake."""
    return F.softplus(D(x, y))


def train(run: FedGan, nets: gan.Nets, optimizers: gan.Optimizers, data: Images, sigma: float, rng: Rng) -> None:
    """DP-SGD on the client: private steps of D, and a step of G after every few of them."""
    G, D, source = nets["generator"], nets["discriminator"], run.source(rng.child("noise"))
    draw = rng.child("training").torch()
    for t in range(run.dp_steps):
        z, y_fake = gan.latent(run.batch_size, run.latent_dim, run.task, draw)
        with torch.no_grad():
            fake = G(z, y_fake)
        real = gan.pictures(data, dpsgd.poisson(source, len(data), run.sample_rate), run.task)
        total = dpsgd.private_sum(D, loss_on_real, real, run.max_grad_norm, sigma, source)
        total += dpsgd.clipped_sum(D, loss_on_fakes, (fake, y_fake), run.max_grad_norm)
        dpsgd.set_gradient(D, total / run.batch_size)  # a public number, however many pictures were drawn
        optimizers["discriminator"].step()
        if (t + 1) % run.d_steps == 0:
            z, y_fake = gan.latent(run.batch_size, run.latent_dim, run.task, draw)
            gan.step(optimizers["generator"], gan.g_loss(D(G(z, y_fake), y_fake), run.g_loss))


def update(nets: Mapping[str, nn.Module], received: Mapping[str, NDArray[Any]], names: Sequence[str]) -> dict[str, Any]:
    """What training changed of these networks' weights."""
    return {n: (to_vector(nets[n]) - received[n].astype(np.float32))[trainable_mask(nets[n])] for n in names}


def moved(
    server: State, nets: Mapping[str, nn.Module], sums: Sums, names: Sequence[str], noise: tuple[float, Source]
) -> dict[str, nn.Module]:
    """The server's networks after the mean of a noised sum of updates."""
    by = dpfedavg.mean_update(sums, names, noise)
    for name in names:
        vector = np.array(server[name], np.float64)
        vector[trainable_mask(nets[name])] += by[name]
        from_vector(nets[name], vector.astype(np.float32))
    return {name: nets[name] for name in names}


def settle(G: nn.Module, z: int, task: Task, rng: Rng) -> nn.Module:
    """G with BatchNorm's statistics as its own noise gives them."""
    draw = rng.torch()
    cpu = [gan.latent(64, z, task, draw) for _ in range(8)]
    return recalibrate(G, [(n,) if y is None else (n, y) for n, y in cpu])
