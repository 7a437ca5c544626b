"""Re-styling for a person: which pictures, whose style, a picture of both, and what was kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from vitrail.analysis.anonymity import measure_anonymity
from vitrail.analysis.latents import Maps, learn_maps
from vitrail.analysis.trained import Opened, keep, open_run, read_pictures
from vitrail.metrics.tables import show
from vitrail.models.image_grid import write_grid
from vitrail.utils.errors import VitrailError, nearest
from vitrail.utils.rng import Rng

COLUMNS = 12


def restyle_run(
    run: str, pictures: Sequence[str], to: str | None, measure: bool, how: tuple[int, float, int],
    label: str | None, out: str,
) -> None:  # fmt: skip
    """The verb: learn the maps, draw, and measure where asked."""
    opened, console = open_run(run), Console(highlight=False)
    names = opened.views.names
    if to is not None and to not in names:
        raise VitrailError(f"--to {to}: there is no such client; {nearest(to, names)}")
    if measure and to is None:
        raise VitrailError("--measure: name the reference client with --to")
    steps, latent, seed = how
    with Console(stderr=True).status("loading") as status:
        maps = learn_maps(opened.trained, steps, latent, seed, status.update)
        before, y = _chosen(opened, pictures, label)
        write_grid(Path(out), restyled_grid(maps, before, [to] if to else names, y, seed), len(before))
        columns = measure_anonymity(opened, maps, str(to), seed, status.update) if measure else []
    console.print(f"pictures above, in the style of {to or 'each client in turn'} below: {out}", markup=False)
    if columns:
        console.print()
        show(columns, console)
        keep(Path(run) / f"anonymity-{to}.json", columns)


def _chosen(opened: Opened, files: Sequence[str], label: str | None) -> tuple[Tensor, Tensor | None]:
    """The pictures that were named; else held-out ones, some of each client."""
    labelled = bool(opened.trained.method.task.classes)
    if files:
        if labelled and label not in opened.views.classes:
            raise VitrailError(f"--label: say what the pictures show; there are {', '.join(opened.views.classes)}")
        y = torch.tensor([opened.views.classes.index(str(label))] * len(files)) if labelled else None
        return read_pictures(opened, files), y
    test, n = opened.views.test, len(opened.views.names)
    shuffled = Rng((0,)).child("pictures to restyle").numpy().permutation(len(test.client))
    own = [shuffled[test.client[shuffled] == k] for k in range(n)]
    some = test.take(np.array([own[k % n][k // n] for k in range(COLUMNS) if k // n < len(own[k % n])]))
    labels = some.pictures.labels
    return some.x, torch.from_numpy(labels) if labelled and labels is not None else None


def restyled_grid(maps: Maps, x: Tensor, to: Sequence[str], y: Tensor | None = None, seed: int = 0) -> Tensor:
    """The pictures, and below them a row for each style; in [0, 1]."""
    return (torch.cat([x, *(maps.restyle(x, name, y, seed) for name in to)]) + 1) / 2
