"""Small settings of every method, and the federation of `vitrail.testing`, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from vitrail.data.dataset import Images
from vitrail.experiment import settings as config
from vitrail.methods.base import Method, ServerMessage, Task
from vitrail.testing.federation import RUN, Traffic, digits, federate, same, shares
from vitrail.utils.rng import Rng

__all__ = [
    "PRIVATE",
    "QUICK",
    "RUN",
    "Traffic",
    "digits",
    "federate",
    "gan_answer",
    "quick",
    "rivals",
    "same",
    "shares",
]

LOCAL = {
    "width": 4,
    "latent_dim": 8,
    "d_width": 4,
    "batch_size": 8,
    "steps_per_message": 2,
    "classifier_rounds": 1,
    "classifier_steps": 2,
}
QUICK: dict[str, dict[str, Any]] = {  # settings that train in seconds
    "prism": {"local_steps": 2, "batch_size": 10, "features": "vitrail-fashion"},
    "moments": {
        "local_steps": 2,
        "batch_size": 10,
        "features": "vitrail-fashion",
        "network": "masked",
        "generator": "small",
    },
    "padpaf": {"width": 4, "latent_dim": 8, "style_depth": 1, "batch_size": 12, "local_epochs": 1, "d_steps": 2},
    "padpafvae": {"width": 4, "latent_dim": 8, "style_depth": 1, "batch_size": 12, "local_epochs": 1},
    "ditto": {"width": 4, "latent_dim": 8, "style_depth": 1, "batch_size": 12, "local_epochs": 1, "d_steps": 2},
    "fedgan": {"width": 4, "latent_dim": 8, "batch_size": 16},
    "mdgan": {"width": 4, "latent_dim": 8, "batch_size": 16, "k": 2, "swap_every": 1},
    "gswgan": {
        "width": 4,
        "latent_dim": 8,
        "batch_size": 8,
        "num_fakes": 16,
        "d_steps": 2,
        "d_batch_size": 8,
        "active_clients": 3,
    },
    "dpfedgan": {"width": 4, "latent_dim": 8, "batch_size": 16, "g_steps": 2},
    **{name: {"local_steps": 3, "batch_size": 8} for name in ("fedavg", "fedprox", "scaffold", "naivemix", "fedmix")},
    "sdafl": {
        "local_steps": 3,
        "batch_size": 8,
        "gan_steps": 3,
        "width": 4,
        "latent_dim": 8,
        "shared_images": 12,
        "pseudo_label_threshold": 0.11,
    },
    "psfedgan": LOCAL,
    "fullgan": LOCAL,
}
PRIVATE: dict[str, tuple[str, dict[str, Any]]] = {  # the same with privacy
    "moments, dense": ("moments", {"network": "dense", "generator": "smooth", "features": "vitrail-fashion"}),
    "prism, moments": ("prism", {"privacy": "moments", "epsilon": 9.8}),
    "fedgan, dp-sgd": (
        "fedgan",
        {
            "privacy": "dp-sgd",
            "noise_multiplier": 1.0,
            "dp_steps": 4,
            "d_steps": 2,
            "sample_rate": 0.3,
            "batch_size": 8,
        },
    ),
    "fedgan, dp-fedavg": ("fedgan", {"privacy": "dp-fedavg", "epsilon": 9.8}),
    "psfedgan, dp-sgd": ("psfedgan", {"privacy": "dp-sgd", "noise_multiplier": 1.0, "sample_rate": 0.3}),
    "fullgan, dp-sgd": ("fullgan", {"privacy": "dp-sgd", "noise_multiplier": 1.0, "sample_rate": 0.3}),
    "gswgan, gradient": ("gswgan", {"privacy": "gradient", "epsilon": 9.8}),
    "dpfedgan, dp-fedavg": ("dpfedgan", {"privacy": "dp-fedavg", "epsilon": 9.8}),
}


def quick(name: str, rounds: int = 3, clients: int = 3, **settings: Any) -> Method:
    """Return a registered method at test size, or one of PRIVATE."""
    name, private = PRIVATE.get(name, (name, {}))
    settings = {**private, **settings}
    resolved = config.resolve(name, {**QUICK.get(name, {}), "rounds": rounds, **settings})
    return config.build_method(resolved, Task((1, 8, 8), 10, rounds, clients))


def gan_answer(method: Any, data: Images, server: Any = None, rng: int = 2) -> Any:
    """Return the parts of a client's reply to a request with both networks of a GAN."""
    server = server or method.server_init(Rng((1,)))
    request = ServerMessage(0, {n: server[n] for n in ("generator", "discriminator")})
    return method.client_round({}, request, data, Rng((rng,)))[1].parts


def rivals() -> Iterator[Images]:
    """Yield very different data sets, of different sizes."""
    some = digits().train.take(np.arange(30))
    for data in (some, some.take(np.arange(1))):
        yield data
        yield from (replace(data, pixels=np.full_like(data.pixels, v)) for v in (0, 255))
        yield replace(data, labels=np.full_like(data.labels, 3))
