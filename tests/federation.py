"""A small federation for tests, with hooks where a test may look at, reorder or spoil what travels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data import load
from vitrail.data.dataset import Dataset, Images
from vitrail.engines.journal import Journal
from vitrail.engines.replies import Failure
from vitrail.engines.rounds import Federation, RoundResult, run_round
from vitrail.engines.server import run_rounds
from vitrail.engines.simulation import SimulatedClients, SimulationEngine
from vitrail.experiment import settings as config
from vitrail.methods.base import Method, ServerMessage, Task
from vitrail.utils.rng import Rng
from vitrail.wire.message import decode

RUN = b"a run for tests!"
LOCAL = {
    "width": 4,
    "latent_dim": 8,
    "d_width": 4,
    "batch_size": 8,
    "steps_per_message": 2,
    "classifier_rounds": 1,
    "classifier_steps": 2,
}
QUICK: dict[str, dict[str, Any]] = {  # settings that make a method small enough to be tested in seconds
    "prism": {"local_steps": 2, "batch_size": 10, "features": "vitrail-fashion"},
    "moments": {"local_steps": 2, "batch_size": 10, "features": "vitrail-fashion"},
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
PRIVATE: dict[str, tuple[str, dict[str, Any]]] = {  # the same with a mechanism
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


@cache
def digits() -> Dataset:
    """Real handwritten digits, 8x8."""
    return load("digits", size=8)


def quick(name: str, rounds: int = 3, clients: int = 3, **settings: Any) -> Method:
    """A registered method at test size, or one of its private settings."""
    name, private = PRIVATE.get(name, (name, {}))
    settings = {**private, **settings}
    resolved = config.resolve(name, {**QUICK.get(name, {}), "rounds": rounds, **settings})
    return config.build_method(resolved, Task((1, 8, 8), 10, rounds, clients))


def shares(clients: int = 3, each: int = 24) -> dict[str, np.ndarray]:
    """Who holds which of the digits."""
    return {f"client-{k}": np.arange(k * each, (k + 1) * each) for k in range(clients)}


@dataclass
class Traffic:
    """Every message of a federation, in the order it was carried."""

    requests: list[tuple[str, bytes]] = field(default_factory=list)
    replies: list[tuple[str, bytes]] = field(default_factory=list)


Spoil = Callable[[int, str, bytes], bytes | Failure]


def federate(
    method: Method,
    folder: Path,
    *,
    holds: dict[str, np.ndarray] | None = None,
    train: Images | None = None,
    rounds: int | None = None,
    workers: int = 1,
    reverse: bool = False,
    dropout: float = 0.0,
    quorum: int = 1,
    spoil: Spoil | None = None,
    fed: Federation | None = None,
    ahead: int = 1,
) -> tuple[Federation, list[RoundResult], Traffic]:
    """Play rounds from the start, or from a federation, and keep everything that travelled.

    `ahead`: in stretches of so many rounds, where the method's clients are free of each other.
    """
    holds = holds or shares()
    train = train or digits().train
    rng = Rng((5,))
    traffic = Traffic()
    fed = fed or Federation(0, method.server_init(rng.child("server", "init"), train.take(np.arange(3))))
    outcomes = []
    crew = SimulatedClients(method, RUN, rng, holds, folder)
    with SimulationEngine(crew, train, workers, dropout) as engine:

        def ask(requests: Iterable[tuple[str, bytes] | None]) -> Iterator[tuple[str, bytes | Failure]]:
            sent = seen(requests)
            for client, answer in engine.ask(reversed(list(sent)) if reverse else sent):
                if isinstance(answer, bytes):
                    traffic.replies.append((client, answer))
                    if spoil:
                        answer = spoil(decode(answer).header.round, client, answer)  # noqa: PLW2901
                yield client, answer

        def seen(requests: Iterable[tuple[str, bytes] | None]) -> Iterator[tuple[str, bytes] | None]:
            for request in requests:
                traffic.requests += [request] if request else []
                yield request

        end = fed.round + (method.task.rounds if rounds is None else rounds)
        while fed.round < end:
            if ahead == 1:
                fed, outcome = run_round(method, fed, RUN, sorted(holds), ask, rng, quorum=quorum)
                outcomes.append(outcome)
                continue
            journal, until = Journal(folder / "answers"), min(end, fed.round + ahead)
            for outcome, after in run_rounds(
                method, fed, RUN, lambda _: sorted(holds), until, ask, rng, journal, quorum=quorum
            ):
                outcomes.append(outcome)
                fed = after or fed
            journal.clear()
    return fed, outcomes, traffic


def same(a: Any, b: Any) -> bool:
    """Whether two trees of state are equal to the bit."""
    from vitrail.utils.state import pack

    (tensors_a, shape_a), (tensors_b, shape_b) = pack(a), pack(b)
    return shape_a == shape_b and all(
        (x.dtype, x.shape) == (y.dtype, y.shape) and x.numpy().tobytes() == y.numpy().tobytes()
        for x, y in zip(tensors_a.values(), tensors_b.values(), strict=True)
    )


def gan_answer(method: Any, data: Images, server: Any = None, rng: int = 2) -> Any:
    """What a client says that is given both networks of a GAN."""
    server = server or method.server_init(Rng((1,)))
    told = ServerMessage(0, {n: server[n] for n in ("generator", "discriminator")})
    return method.client_round({}, told, data, Rng((rng,)))[1].parts


def rivals() -> Iterator[Images]:
    """Data sets as unlike as can be, of different sizes."""
    some = digits().train.take(np.arange(30))
    for data in (some, some.take(np.arange(1))):
        yield data
        yield from (replace(data, pixels=np.full_like(data.pixels, v)) for v in (0, 255))
        yield replace(data, labels=np.full_like(data.labels, 3))
