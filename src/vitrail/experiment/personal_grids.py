"""Image grids of personal generators: content changes down, style across (PaDPaF, Figures 6, 10, 11).

They are private: each is next to the client's private file in clients/, readable by its owner only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from vitrail.engines.client import private_file
from vitrail.experiment.plan import Plan
from vitrail.models.image_grid import write_grid
from vitrail.models.model_file import Generator, open_model
from vitrail.utils import state as store
from vitrail.utils.atomic import write_atomically
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

INDEX = "grids.json"
ROWS, COLUMNS, MAX_CLIENTS = 6, 10, 40  # contents, styles, clients with a grid


@dataclass(frozen=True)
class Personal:
    """A client's grid; `unseen` are the labels of which the client has no image."""

    client: str
    path: Path
    labels: tuple[str, ...]
    unseen: tuple[str, ...]


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


def draw_personal(plan: Plan, server: State) -> list[Personal]:
    """Write the grids of a run whose clients have personal generators with a style."""
    if not plan.method.has_personal_models:
        return []
    from vitrail.nets.content_style import ContentStyleGenerator as Styled

    found: list[Personal] = []
    folder, labels = plan.folder.clients, plan.data.train.labels
    for name, held in list(zip(plan.partition.names, plan.partition.indices, strict=True))[:MAX_CLIENTS]:
        private = private_file(folder, name)
        state = store.load(private)["state"] if private.exists() else {}
        made = plan.method.export_models(server, state).get("generator") if state else None
        generator = open_model(made, plan.data.classes) if made else None
        if generator is None or not isinstance(generator.net, Styled) or generator.net.style is None:
            continue
        classes = generator.classes[:20]
        seen = set() if labels is None else set(np.unique(labels[held]).tolist())
        unseen = tuple(c for k, c in enumerate(classes) if labels is not None and k not in seen)
        path = private.with_suffix(".png")
        write_grid(path, content_down_style_across(generator), len(classes) or COLUMNS)
        path.chmod(0o600)
        found.append(Personal(name, path, classes, unseen))
    if found:
        rows = [{"client": p.client, "file": p.path.name, "labels": p.labels, "unseen": p.unseen} for p in found]
        write_atomically(folder / INDEX, json.dumps(rows, indent=1).encode(), 0o600)
    return found
