"""Personal generators and their image grids: the shared part of a run's checkpoint, with a client's private part."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from vitrail.experiment import settings as config
from vitrail.experiment.plan import Plan
from vitrail.experiment.run_dir import RunDir
from vitrail.methods.base import Model, Task
from vitrail.models.image_grid import write_grid
from vitrail.models.kinds import kind_named
from vitrail.models.model_file import Generator, load, open_model
from vitrail.nets.content_style import ContentStyleGenerator, FixedLatentGenerator
from vitrail.utils import state as store
from vitrail.utils.atomic import write_atomically
from vitrail.utils.errors import Malformed, VitrailError, nearest
from vitrail.utils.paths import private_file
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

INDEX = "grids.json"
ROWS, COLUMNS, MAX_CLIENTS = 6, 10, 40  # contents, styles, clients with a grid


def load_personal(run: str | Path, client: str) -> Generator:
    """Load a client's personal generator; its private part is only in the run's clients/ folder.

    Args:
        run: The run's folder.
        client: The client's name.

    Raises:
        VitrailError: If clients of this method have no personal generators, or the client is unknown.
    """
    generator, own = _of_client(run, client)
    if not own:
        method = RunDir(Path(run)).stored_settings().method
        raise VitrailError(
            f"--client {client}: clients of method={method} have no personal generators; remove --client"
        )
    return generator


def load_joined(model: str | Path, private: str | Path) -> Generator:
    """Load a client's personal generator from the two files that a node has.

    Args:
        model: The model file that all clients received.
        private: The client's private file of the same run.

    Raises:
        VitrailError: If the two do not belong together.
    """
    stored = store.load(Path(private))
    own = stored.get("state") if isinstance(stored, dict) else None
    own = own.get("personal", own) if isinstance(own, dict) else {}  # see ModelKind.with_private_part
    if not isinstance(own, dict) or not own:
        raise VitrailError(f"--client {private}: it has no personal model; give a client's private file")

    def joined(shared: Model) -> Model:
        try:
            return Model(shared.kind, kind_named(shared.kind).with_private_part(shared.tree, own))
        except Malformed as e:
            raise Malformed(f"--client {private}: {e}; give the two files of the same run") from e

    generator = load(model, joined)
    if generator.about.get("run", stored["run"].hex()) != stored["run"].hex():
        raise VitrailError(f"--client {private}: it is of another run than {model}; give the two files of the same run")
    return replace(generator, about={**generator.about, "client": Path(private).stem})


def load_of_client(run: str | Path, client: str) -> Generator:
    """Load the generator that a client uses: its personal one, or the shared one if it has none."""
    return _of_client(run, client)[0]


def _of_client(run: str | Path, client: str) -> tuple[Generator, bool]:
    run_dir = RunDir(Path(run))
    settings = run_dir.stored_settings()
    private = private_file(run_dir.clients, client)
    if not private.exists():
        known = sorted(p.stem for p in run_dir.clients.glob("*.safetensors"))
        raise VitrailError(f"--client {client}: it has no private file in {run_dir.clients}; {nearest(client, known)}")
    shared = load(run_dir.model)
    method = config.build_method(settings, Task(shared.shape, len(shared.classes), settings.rounds, settings.clients))
    server, own = store.load(run_dir.checkpoint)["federation"]["server"], store.load(private)["state"]
    made, plain = method.export_models(server, own).get("generator"), method.export_models(server).get("generator")
    if made is None or not own or (plain and store.tree_digest(made.tree) == store.tree_digest(plain.tree)):
        return shared, False
    return open_model(made, shared.classes, {**shared.about, "client": client}), True


def fixed(generator: Generator, content: int | None = None, style: int | None = None) -> Generator:
    """Return a personal generator whose images all have the content, or the style, of one seed."""
    net = generator.net
    if not isinstance(net, ContentStyleGenerator) or net.style is None:
        raise VitrailError(
            "--content-seed and --style-seed are for generators with a style; name a client that has one with --client"
        )
    return replace(generator, net=FixedLatentGenerator(net, content, style))


@torch.no_grad()
def content_down_style_across(generator: Generator) -> torch.Tensor:
    """Return the images of a grid, row by row; with labels, each column has one label and one style.

    The noise is the same for all clients, so their grids differ only in style.
    """
    net, k = generator.net, min(len(generator.classes), 20) or COLUMNS
    latent = int(net.latent)  # type: ignore[arg-type]
    draw = Rng((0,)).child("personal grid")
    z_c = torch.randn(ROWS, latent, generator=draw.child("content").torch())
    z_s = torch.randn(k, latent, generator=draw.child("style").torch())
    z = torch.cat([z_c.repeat_interleave(k, 0), z_s.repeat(ROWS, 1)], 1)
    x: torch.Tensor = net(z, torch.arange(k).repeat(ROWS) if generator.classes else None)
    return (x + 1) / 2


def draw_personal(plan: Plan, server: State) -> None:
    """Write an image grid for each client whose personal generator has a style, next to its private file.

    Content changes down, style across. Grids are private: only the owner can read them.
    """
    rows, folder, labels = [], plan.folder.clients, plan.data.train.labels
    for name, indices in list(zip(plan.partition.names, plan.partition.indices, strict=True))[:MAX_CLIENTS]:
        private = private_file(folder, name)
        state = store.load(private)["state"] if private.exists() else {}
        made = plan.method.export_models(server, state).get("generator") if state else None
        generator = open_model(made, plan.data.classes) if made else None
        if not generator or not isinstance(generator.net, ContentStyleGenerator) or generator.net.style is None:
            continue
        classes = generator.classes[:20]
        seen = set() if labels is None else set(np.unique(labels[indices]).tolist())
        unseen = [c for k, c in enumerate(classes) if labels is not None and k not in seen]
        path = private.with_suffix(".png")
        write_grid(path, content_down_style_across(generator), len(classes) or COLUMNS)
        path.chmod(0o600)
        rows.append({"client": name, "file": path.name, "labels": classes, "unseen": unseen})
    if rows:
        write_atomically(folder / INDEX, json.dumps(rows, indent=1).encode(), 0o600)
