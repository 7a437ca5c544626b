"""The training steps of Algorithm 1 (F in the paper) for one user's conditional GAN: plain functions.

algorithm.py (PS-FedGAN) and baselines/fullgan.py (full-GAN sharing) write their loops with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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

Trained = tuple[nn.Module, torch.optim.Adam]  # a network and its optimizer


def new_discriminator(run: LocalGan, rng: Rng) -> State:
    """Return the entries of a client's state for D_u before its first step."""
    D = initialise(run.discriminator(run.architecture), rng.child("discriminator").torch())
    return {"architecture": run.architecture, "discriminator": to_vector(D), "d_adam": None}


def load_generator(run: LocalGan, state: State) -> Trained:
    """Build G and its Adam from a client's state, or the server's."""
    G = from_vector(run.generator().to(run.task.device), state["generator"]).train()
    return G, gan.adam(G, run.lr, (run.beta1, 0.999), state["adam"])


def load_discriminator(run: LocalGan, state: State) -> Trained:
    """Build D_u and its Adam from a client's state."""
    D = from_vector(run.discriminator(state["architecture"]), state["discriminator"]).to(run.task.device).train()
    return D, gan.adam(D, run.d_lr, (run.beta1, 0.999), state["d_adam"])


def generator_state(steps: int, G: nn.Module, optimizer: torch.optim.Adam) -> State:
    """Return the state of G and its Adam after `steps` steps."""
    return {"steps": steps, "generator": to_vector(G), "adam": optimizer.state_dict()["state"]}


def user_state(before: State, steps: int, G: Trained, D: Trained) -> State:
    """Return a client's state after `steps` more steps of its GAN."""
    return {
        **generator_state(before["steps"] + steps, *G),
        "architecture": before["architecture"],
        "discriminator": to_vector(D[0]),
        "d_adam": D[1].state_dict()["state"],
    }


def train_discriminator(run: LocalGan, D: Trained, data: Images, fakes: gan.Batch, rng: Rng) -> float:
    """D_u <- F(G_u(z, l), D_u): one iteration on real images and fakes; return the loss, 0 under dp-sgd."""
    net, optimizer = D
    if run.mechanism is None:
        pick = rng.child("real").numpy().choice(len(data), min(run.batch_size, len(data)), replace=False)
        loss = gan.d_loss(net, gan.image_batch(data, pick, run.task), fakes)
        gan.step(optimizer, loss)
        check_finite(net)
        return float(loss.detach())
    source = run.source(rng.child("noise"))
    real = gan.image_batch(data, dpsgd.poisson_sample(source, len(data), run.sample_rate), run.task)
    total = dpsgd.private_sum(net, loss_on_real, real, run.max_grad_norm, run.mechanism.sigma, source)
    total += dpsgd.clipped_sum(net, loss_on_fakes, (fakes[0].detach(), fakes[1]), run.max_grad_norm)
    dpsgd.set_gradient(net, total / run.batch_size)  # a public constant: the number of images drawn is private
    optimizer.step()
    check_finite(net)
    return 0.0


def further_iterations(
    run: LocalGan, G: nn.Module, D: Trained, data: Images, seed: int, t: int, labels: Sequence[int], rng: Rng
) -> None:
    """Train D_u d_steps - 1 times on fakes of their own z and l, before z_t and l_t (section 2.2.2)."""
    for j in range(run.d_steps - 1, 0, -1):
        z, l = run.noise(seed, t, labels, j)  # noqa: E741
        train_discriminator(run, D, data, (_fakes(G, z, l), l), rng.child("step", t, j))


@torch.no_grad()
def _fakes(G: nn.Module, z: Tensor, labels: Tensor | None) -> Tensor:
    """Return G(z, l) in training mode without updating BatchNorm's statistics: the server does not repeat this."""
    norms = [m for m in G.modules() if isinstance(m, nn.BatchNorm2d)]
    for m in norms:
        m.track_running_stats = False
    fakes: Tensor = G(z, labels)
    for m in norms:
        m.track_running_stats = True
    return fakes


def train_generator(run: LocalGan, optimizer: torch.optim.Adam, D: nn.Module, fakes: gan.Batch) -> float:
    """G^(t+1) <- F(G^(t)(z_t, l_t), D_u^(t+1)); `fakes` are G^(t)(z_t, l_t) with their graph, and l_t."""
    x, labels = fakes
    D.requires_grad_(False)  # trained on the client, never on the server: both must build the same graph
    loss = gan.g_loss(D(x, labels), run.g_loss)
    gan.step(optimizer, loss)
    D.requires_grad_(True)
    return float(loss.detach())


def check_finite(net: nn.Module) -> None:
    """Stop a client whose GAN has diverged, before anything is sent.

    Raises:
        VitrailError: If a weight is infinite or not a number.
    """
    if not np.isfinite(to_vector(net)).all():
        raise VitrailError("the GAN's weights are no longer finite; lower lr")
