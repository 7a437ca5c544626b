"""DP-FedAvg: clients send updates of bounded norm, the server adds noise to their sum.

McMahan, Ramage, Talwar, Zhang; ICLR 2018. The update of a client is what its training changed, Δ = w_k - w_t, scaled to
|Δ| <= C. Whatever a client's data is replaced by, the sum moves by at most 2C, so one client's whole data is protected
in all that is made of the noised sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.methods.base import Sums
from vitrail.privacy.clipping import clipped, noised
from vitrail.privacy.mechanism import Mechanism, Noise
from vitrail.privacy.noise import Source

Vectors = Mapping[str, NDArray[Any]]


def mechanism(clip: float, what: str, secure: bool) -> Mechanism:
    """DP-FedAvg at a noise multiplier of 1; `what` is updated."""
    sees = "sees only the sum of updates" if secure else "sees each client's update"
    return Mechanism(
        name="dp-fedavg",
        unit="client",
        adjacency="replace one",
        sensitivity=2 * clip,
        why=f"each client scales its update to norm {clip:g} or less, so replacing its data moves the sum by at most "
        f"{2 * clip:g}",
        noise=Noise(1.0),
        once=False,
        leaves=f"the update of {what}, scaled to norm {clip:g} or less; noise is added to the sum by the server",
        trust=f"the server, which {sees}, to add the noise and to keep the sum to itself; all clients to scale theirs",
        noised_by="server",
    )


def bounded(update: Vectors, clip: float, codec: str) -> dict[str, NDArray[Any]]:
    """An update in parts, all of them together scaled to norm C."""
    ends = np.cumsum([v.size for v in update.values()])[:-1]
    whole = clipped(np.concatenate(list(update.values())), clip, codec)
    return dict(zip(update, np.split(whole, ends), strict=True))


def mean_update(sums: Sums, names: Sequence[str], noise: tuple[float, Source] | None) -> dict[str, NDArray[np.float64]]:
    """The mean of the clients' updates; with (σ, source), of their noised sum."""
    whole = np.concatenate([sums.values[name] for name in names])
    if noise is not None:
        whole = noised(whole, *noise)
    ends = np.cumsum([sums.values[name].size for name in names])[:-1]
    return dict(zip(names, np.split(whole / sums.clients, ends), strict=True))
