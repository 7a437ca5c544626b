"""A run loaded for analysis: content networks from the server's state, each client's style from its private file."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.analysis.views import View, Views, as_tensor, make_views
from vitrail.data.decode import decode
from vitrail.data.holdout import not_held_out
from vitrail.experiment import settings as config
from vitrail.experiment.plan import load_and_partition
from vitrail.experiment.run_dir import RunDir
from vitrail.experiment.settings import Settings
from vitrail.methods.base import Method, Task
from vitrail.metrics.results_io import Column
from vitrail.models.model_file import open_model
from vitrail.nets.content_style import ContentStyleGenerator
from vitrail.nets.feature_moments import to_float
from vitrail.nets.spectral_discriminator import SpectralDiscriminator
from vitrail.utils import state as store
from vitrail.utils.atomic import write_atomically
from vitrail.utils.errors import VitrailError
from vitrail.utils.paths import private_file
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

BATCH = 256
Progress = Callable[[str], None]  # called with a message from time to time


@dataclass(frozen=True)
class TrainedNetworks:
    """D^c, and of each client D^s_i and its generator, in evaluation mode.

    Args:
        classes: Number of labels; 0 without.
        D_c: The content discriminator.
        D_s: The style discriminator of each client.
        generators: The generator of each client.
    """

    classes: int
    D_c: SpectralDiscriminator
    D_s: Mapping[str, SpectralDiscriminator]
    generators: Mapping[str, ContentStyleGenerator]

    @staticmethod
    def of(method: Method, server: State, clients: Mapping[str, State | None]) -> TrainedNetworks:
        """Build the networks from the server's state and the private states of clients."""
        labels = tuple(map(str, range(method.task.classes)))
        D_s, generators = {}, {}
        for name, state in clients.items():
            model, D_c, style = method.content_style_models(server, state)
            D_s[name] = style.eval().requires_grad_(False)
            generators[name] = open_model(model, labels).net.requires_grad_(False)
        return TrainedNetworks(method.task.classes, D_c.eval().requires_grad_(False), D_s, generators)  # type: ignore[arg-type]

    def labels(self, view: View) -> Tensor | None:
        """Return the labels of images where the networks have labels."""
        labels = view.images.labels
        return as_tensor(labels) if self.classes and labels is not None else None

    def content(self, x: Tensor, positions: int = 1) -> Tensor:
        """Return φ^c of images, one row per image.

        Args:
            x: Images in [-1, 1].
            positions: Pool the feature map to positions x positions means, concatenated; 1: φ^c itself.
        """
        return _features(self.D_c, x, positions)

    def style(self, client: str, x: Tensor, positions: int = 1) -> Tensor:
        """Return φ^s_i of images of any client; arguments as for `content`."""
        return _features(self.D_s[client], x, positions)


@dataclass(frozen=True)
class LoadedRun:
    """A run's settings, method and networks, and the images of its clients."""

    settings: Settings
    method: Method
    trained: TrainedNetworks
    views: Views

    @property
    def untrained(self) -> TrainedNetworks:
        """The same networks before the first round; all clients have the same style."""
        server = self.method.server_init(Rng((self.settings.seed,)).child("server", "init"))
        return TrainedNetworks.of(self.method, server, dict.fromkeys(self.trained.D_s))


def load_run(run: str | Path, data: Any = None) -> LoadedRun:
    """Load a run for analysis.

    Args:
        run: The run's folder, with its clients' private files.
        data: The run's data, if they were given in Python.

    Raises:
        VitrailError: If it is not a run whose method separates content and style, or if files are missing.
    """
    folder = RunDir(Path(run))
    settings = folder.stored_settings()
    if not config.build_method(settings, Task((1, 8, 8), 0, 1, 1)).separates_style:
        raise VitrailError(
            f"{run}: with its settings, method={settings.method} does not separate content from style; "
            "give a run whose clients share the content only"
        )
    if not folder.checkpoint.exists():
        raise VitrailError(f"{run} has not finished a round; continue it with `vitrail resume {run}`")
    settings, dataset, partition = load_and_partition(settings, data)
    labelled = settings.labels == "auto" and dataset.train.labels is not None
    task = Task(dataset.shape, len(dataset.classes) if labelled else 0, settings.rounds, len(partition.names))
    method = config.build_method(settings, task)
    files = {name: private_file(folder.clients, name) for name in partition.names}
    states = {name: store.load(path)["state"] for name, path in files.items() if path.exists()}
    if not states:
        raise VitrailError(
            f"{folder.clients} has no client's private file, and style is stored only there; "
            "run the analysis on the machine that simulated the run"
        )
    checkpoint = store.load(folder.checkpoint)
    if doubt := not_held_out(dataset, checkpoint.get("split")):
        warnings.warn(f"{run}: test images are {doubt}", stacklevel=2)
    trained = TrainedNetworks.of(method, checkpoint["federation"]["server"], states)
    return LoadedRun(settings, method, trained, make_views(dataset, partition, settings.seed, list(states)))


@torch.no_grad()
def _features(net: SpectralDiscriminator, x: Tensor, positions: int) -> Tensor:
    return torch.cat([F.adaptive_avg_pool2d(net.map(batch), positions).flatten(1) for batch in x.split(BATCH)])


def read_images(run: LoadedRun, files: Sequence[str]) -> Tensor:
    """Read image files in [-1, 1], with the size and channels of the run's images."""
    c, size, _ = run.method.task.shape
    return to_float(np.stack([decode(name, c == 1, size, name) for name in files]))


def save_measures(path: Path, columns: Sequence[Column]) -> None:
    """Write measures as JSON."""
    tree = {c.name: [asdict(m) for m in c.measures] for c in columns}
    write_atomically(path, (json.dumps(tree, indent=1) + "\n").encode())
