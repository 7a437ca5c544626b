"""The networks of one client between rounds: loaded from its private file and the server's message, and stored again.

Federated parameters come from the server in every round. Private networks, and the power-iteration vectors of federated
networks (which are no parameters), stay in the client's private state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from torch import nn

from vitrail.methods import gan
from vitrail.nets.content_style import initialise
from vitrail.nets.flat import from_vector, load_trainable, to_vector, trainable_mask
from vitrail.nets.spectral_discriminator import warm_up_spectral_norm
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire.codecs import Array


def load_networks(nets: gan.Nets, state: State, theta_0: Mapping[str, Array], seed: Array) -> gan.Nets:
    """Fill networks with θ_0 where the server sent it, else from the client's state.

    Args:
        nets: All networks of a client, with any weights; changed in place.
        state: The client's private state; empty before its first round.
        theta_0: Parameters of the federated networks, as sent by the server.
        seed: Seed from which all clients draw the same initial private networks.

    Returns:
        The same networks.
    """
    for name, net in nets.items():
        if name in theta_0:
            load_trainable(net, theta_0[name])
        elif state:
            from_vector(net, state[name])
        else:
            initialise(net, Rng((seed.tobytes(),)).child(name).torch())
    if not state:
        warm_up_spectral_norm(nn.ModuleList(nets.values()))
    elif "power_iteration" in state:
        at = 0
        for name in theta_0:
            vector, buffers = to_vector(nets[name]), ~trainable_mask(nets[name])
            vector[buffers] = state["power_iteration"][at : at + buffers.sum()]
            from_vector(nets[name], vector)
            at += int(buffers.sum())
    return nets


def private_state(nets: gan.Nets, federated: Iterable[str]) -> State:
    """Return what a client stores of its networks: the private ones, and the buffers of the federated ones."""
    buffers = [to_vector(nets[n])[~trainable_mask(nets[n])] for n in federated]
    power_iteration = np.concatenate([np.empty(0, np.float32), *buffers])
    private: State = {name: to_vector(net) for name, net in nets.items() if name not in federated}
    return {**private, "power_iteration": power_iteration} if len(power_iteration) else private
