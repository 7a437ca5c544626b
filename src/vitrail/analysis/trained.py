"""A run of PaDPaF opened for use: content's networks from the server's state, each client's style from its own file."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.analysis.views import Views, views_of
from vitrail.data.decode import decode
from vitrail.data.holdout import not_held_out
from vitrail.engines.client import private_file
from vitrail.experiment import settings as config
from vitrail.experiment.plan import load_and_partition
from vitrail.experiment.run_dir import RunDir
from vitrail.experiment.settings import Settings
from vitrail.methods.base import Task
from vitrail.methods.padpaf.algorithm import PaDPaF
from vitrail.metrics.results_io import Column
from vitrail.models.model_file import open_model
from vitrail.nets.content_style import ContentStyleGenerator, initialise
from vitrail.nets.feature_moments import to_float
from vitrail.nets.flat import from_vector, to_vector, trainable_mask
from vitrail.nets.spectral_discriminator import SpectralDiscriminator, warm_up_spectral_norm
from vitrail.utils import state as store
from vitrail.utils.atomic import write_atomically
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

BATCH = 256


@dataclass(frozen=True)
class Trained:
    """D^c, each client's D^s_i, and each client's whole generator; none of them learns any more."""

    method: PaDPaF
    D_c: SpectralDiscriminator
    D_s: Mapping[str, SpectralDiscriminator]
    generators: Mapping[str, ContentStyleGenerator]

    @staticmethod
    def of(method: PaDPaF, server: State, clients: Mapping[str, State]) -> Trained:
        """From the server's state and the clients' private ones."""
        D_s = {name: _discriminator(method, state["style_discriminator"]) for name, state in clients.items()}
        made = {name: method.export_models(server, state)["generator"] for name, state in clients.items()}
        names = tuple(map(str, range(method.task.classes)))
        nets = {name: open_model(model, names).net.requires_grad_(False) for name, model in made.items()}
        D_c = method.content()["discriminator"]
        vector = to_vector(D_c)
        vector[trainable_mask(D_c)] = server["discriminator"]
        return Trained(method, _settled(from_vector(D_c, vector)), D_s, nets)  # type: ignore[arg-type]

    @staticmethod
    def untrained(method: PaDPaF, seed: int, names: Mapping[str, Any]) -> Trained:
        """The networks as a run of this seed begins with them: all clients have the same style."""
        server = method.server_init(Rng((seed,)).child("server", "init"))
        draw = Rng((server["seed"].tobytes(),))
        nets = method.style(method.content()["generator"])
        for name, net in nets.items():
            initialise(net, draw.child(name).torch())
        _settled(nets["style_discriminator"])
        first = {name: to_vector(net) for name, net in nets.items()}
        return Trained.of(method, server, dict.fromkeys(names, first))

    def content(self, x: Tensor, places: int = 1) -> Tensor:
        """φ^c of pictures in [-1, 1]; with `places`, its means over so many by so many places, one after another."""
        return _features(self.D_c, x, places)

    def style(self, client: str, x: Tensor, places: int = 1) -> Tensor:
        """The same of φ^s_i; the pictures need not be client i's own."""
        return _features(self.D_s[client], x, places)


@dataclass(frozen=True)
class Opened:
    """A run's networks with its settings, and the pictures as each of its clients sees them."""

    settings: Settings
    trained: Trained
    views: Views

    @property
    def untrained(self) -> Trained:
        """The same networks before the first round."""
        return Trained.untrained(self.trained.method, self.settings.seed, self.trained.D_s)


def open_run(run: str | Path, given: Any = None) -> Opened:
    """Open a run's folder; `given` is its data where that came from Python."""
    place = RunDir(Path(run))
    if not place.settings.exists():
        raise VitrailError(f"{run} is no run's folder (there is no settings.toml); give one of method padpaf")
    settings = config.resolve(str(place.settings), {})
    if settings.method != "padpaf":
        raise VitrailError(f"{run} is a run of method {settings.method}; content and style are apart in padpaf alone")
    if settings.shared != "content":  # type: ignore[attr-defined]
        raise VitrailError(f"{run} shared {settings.shared}; content and style are apart with shared=content alone")  # type: ignore[attr-defined]
    if not place.checkpoint.exists():
        raise VitrailError(f"{run} has finished no round yet; `vitrail resume {run}` goes on with it")
    settings, data, shares = load_and_partition(settings, given)
    labelled = settings.labels == "auto" and data.train.labels is not None
    task = Task(data.shape, len(data.classes) if labelled else 0, settings.rounds, len(shares.names))
    method = config.build_method(settings, task)
    assert isinstance(method, PaDPaF)  # noqa: S101
    files = {name: private_file(place.clients, name) for name in shares.names}
    states = {name: store.load(path)["state"] for name, path in files.items() if path.exists()}
    if not states:
        raise VitrailError(f"{place.clients} holds no client's file; style is in those alone, so nothing can be done")
    checkpoint = store.load(place.checkpoint)
    if doubt := not_held_out(data, checkpoint.get("split")):
        warnings.warn(f"{run}: test images are {doubt}", stacklevel=2)
    server = checkpoint["federation"]["server"]
    return Opened(settings, Trained.of(method, server, states), views_of(data, shares, settings.seed, list(states)))


@torch.no_grad()
def _features(net: SpectralDiscriminator, x: Tensor, places: int) -> Tensor:
    means = [F.adaptive_avg_pool2d(net.map(some), places).flatten(1) for some in x.split(BATCH)]
    return torch.cat(means)


def _discriminator(method: PaDPaF, vector: Any) -> SpectralDiscriminator:
    net = method.style(method.content()["generator"])["style_discriminator"]
    return from_vector(net, vector).eval().requires_grad_(False)  # type: ignore[return-value]


def _settled(net: nn.Module) -> nn.Module:
    warm_up_spectral_norm(net)
    return net.eval().requires_grad_(False)


def read_pictures(opened: Opened, files: Sequence[str]) -> Tensor:
    """Picture files in [-1, 1], of the size and the channels that the run has."""
    c, size, _ = opened.trained.method.task.shape
    return to_float(np.stack([decode(name, c == 1, size, name) for name in files]))


def keep(path: Path, columns: Sequence[Column]) -> None:
    """Write measures as JSON."""
    tree = {c.name: [asdict(m) for m in c.measures] for c in columns}
    write_atomically(path, (json.dumps(tree, indent=1) + "\n").encode())
