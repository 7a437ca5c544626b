"""DP-FedAvg: clients send clipped updates, the server adds noise to their sum.

McMahan, Ramage, Talwar, Zhang; ICLR 2018. A client's update Δ = w_k - w_t is scaled to |Δ| <= C. Replacing one
client's data changes the sum by at most 2C, so all data of one client is protected in everything that is computed
from the noised sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.privacy.clipping import clipped, noised
from vitrail.privacy.mechanism import Mechanism, Noise
from vitrail.privacy.noise import Source

Vectors = Mapping[str, NDArray[Any]]


def mechanism(clip: float, what: str, secure: bool) -> Mechanism:
    """Return DP-FedAvg at a noise multiplier of 1.

    Args:
        clip: Largest norm C of an update.
        what: What is updated, in words.
        secure: Whether the server sees only the sum of updates.
    """
    sees = "sees only the sum of updates" if secure else "sees each client's update"
    return Mechanism(
        name="dp-fedavg",
        unit="client",
        adjacency="replace one",
        sensitivity=2 * clip,
        why=f"each client clips its update to norm {clip:g}, so replacing its data changes the sum by at most "
        f"{2 * clip:g}",
        noise=Noise(1.0),
        once=False,
        leaves=f"the update of {what}, clipped to norm {clip:g}; the server adds noise to the sum",
        trust=f"the server, which {sees}, to add the noise and not to disclose what it sees; all clients to clip their "
        "updates",
        noised_by="server",
        noised="updates",
    )


def clip_update(update: Vectors, clip: float, codec: str) -> dict[str, NDArray[Any]]:
    """Clip an update that consists of several parts to norm C, all parts together.

    Args:
        update: Parts of the update by name.
        clip: Largest norm C.
        codec: Precision in which it is sent: "float32" or "float16".
    """
    ends = np.cumsum([v.size for v in update.values()])[:-1]
    whole = clipped(np.concatenate(list(update.values())), clip, codec)
    return dict(zip(update, np.split(whole, ends), strict=True))


def mean_update(
    sums: Vectors, clients: int, names: Sequence[str], noise: tuple[float, Source] | None
) -> dict[str, NDArray[np.float64]]:
    """Return the mean of the clients' updates, from their sum with noise.

    Args:
        sums: Sums of the updates by part.
        clients: Number of updates.
        names: Parts of the update, in a fixed order.
        noise: σ of the noise and its source; None: no noise.
    """
    whole = np.concatenate([sums[name] for name in names])
    if noise is not None:
        whole = noised(whole, *noise)
    ends = np.cumsum([sums[name].size for name in names])[:-1]
    return dict(zip(names, np.split(whole / clients, ends), strict=True))
