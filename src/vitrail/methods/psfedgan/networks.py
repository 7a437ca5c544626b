"""One user's conditional GAN between rounds: its networks and optimizers, loaded from a state and stored again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from vitrail.methods import gan
from vitrail.nets.flat import from_vector, to_vector
from vitrail.utils.errors import VitrailError
from vitrail.utils.state import State

if TYPE_CHECKING:
    from vitrail.methods.psfedgan.algorithm import PsFedGan

Trained = tuple[nn.Module, torch.optim.Adam]  # a network and its optimizer


def load_generator(run: PsFedGan, state: State) -> Trained:
    """Build G and its Adam from a client's state, or the server's."""
    G = from_vector(run.generator().to(run.task.device), state["generator"]).train()
    return G, gan.adam(G, run.lr, (run.beta1, run.beta2), state["adam"])


def load_discriminator(run: PsFedGan, state: State) -> Trained:
    """Build D_u and its Adam from a client's state."""
    D = from_vector(run.discriminator(state["architecture"]), state["discriminator"]).to(run.task.device).train()
    return D, gan.adam(D, run.d_lr, (run.beta1, run.beta2), state["d_adam"])


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


@torch.no_grad()
def fakes_for_discriminator(G: nn.Module, noise: gan.Batch) -> gan.Batch:
    """Return G(z, l) in training mode without updating BatchNorm's statistics: the server does not repeat this."""
    norms = [m for m in G.modules() if isinstance(m, nn.BatchNorm2d)]
    for m in norms:
        m.track_running_stats = False
    fakes = G(*noise)
    for m in norms:
        m.track_running_stats = True
    return fakes, noise[1]


def check_finite(net: nn.Module) -> None:
    """Stop a client whose GAN has diverged, before anything is sent.

    Raises:
        VitrailError: If a weight is infinite or not a number.
    """
    if not np.isfinite(to_vector(net)).all():
        raise VitrailError("the GAN's weights are no longer finite; lower lr")


# -- A client's own D_u (section 2.2: "we impose no constraint on D_u") -----------------------------------------------


def own_discriminators(run: PsFedGan) -> dict[str, str]:
    """Return the architecture of each client in client_discriminators."""
    pairs = [word.strip().rpartition("=") for word in run.client_discriminators.split(",") if word.strip()]
    return {name.strip(): architecture.strip() for name, _, architecture in pairs}


def with_discriminator_of(run: PsFedGan, client: str) -> PsFedGan:
    """Return the method with this client's D_u."""
    architecture = own_discriminators(run).get(client)
    if architecture is None:
        return run
    try:
        return with_discriminator(run, architecture if client else "")
    except VitrailError as e:
        raise VitrailError(
            f"client_discriminators={run.client_discriminators}: {e}; write, for example, NAME=dense:32"
        ) from e


def with_discriminator(run: PsFedGan, architecture: str) -> PsFedGan:
    """Return the method with another D_u for all clients; an unknown architecture is refused."""
    run.coding(architecture)
    kind, _, width = architecture.partition(":")
    return replace(run, d_architecture=kind, d_width=int(width), client_discriminators="")
