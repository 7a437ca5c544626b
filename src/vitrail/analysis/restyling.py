"""Re-style images of a run: select images, learn latent maps, write a grid, and measure anonymity if requested."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from vitrail.analysis.anonymity import measure_anonymity
from vitrail.analysis.latents import LatentMaps, learn_maps
from vitrail.analysis.trained import LoadedRun, load_run, read_images, save_measures
from vitrail.models.image_grid import write_grid
from vitrail.report.evaluation_table import print_measures
from vitrail.utils.errors import VitrailError, nearest
from vitrail.utils.rng import Rng

COLUMNS = 12


def restyle_run(
    folder: str, files: Sequence[str], to: str | None, measure: bool, training: tuple[int, float, int],
    label: str | None, out: str,
) -> None:  # fmt: skip
    """Write images of a run in the style of one client, or of all.

    Args:
        folder: The run's folder.
        files: Image files; if empty, held-out images of all clients.
        to: The client whose style is used; None: all clients, one row each.
        measure: Also measure how well client `to` hides whose images they were.
        training: Steps, weight of the latent term and seed of `learn_maps`.
        label: Label of the image files, if the run has labels.
        out: PNG file to write.
    """
    run, console = load_run(folder), Console(highlight=False)
    names = run.views.names
    if to is not None and to not in names:
        raise VitrailError(f"--to {to}: there is no such client; {nearest(to, names)}")
    if measure and to is None:
        raise VitrailError("--measure: name the reference client with --to")
    steps, latent, seed = training
    with Console(stderr=True).status("loading") as status:
        maps = learn_maps(run.trained, steps, latent, seed, status.update)
        x, y = _select_images(run, files, label)
        write_grid(Path(out), restyled_grid(maps, x, [to] if to else names, y, seed), len(x))
        columns = measure_anonymity(run, maps, str(to), seed, status.update) if measure else []
    style = to or "each client, one row per client"
    console.print(f"wrote {out}: images in the first row, below them in the style of {style}", markup=False)
    if columns:
        console.print()
        print_measures(columns, console)
        save_measures(Path(folder) / f"anonymity-{to}.json", columns)


def _select_images(run: LoadedRun, files: Sequence[str], label: str | None) -> tuple[Tensor, Tensor | None]:
    """Return the images of files, or held-out images of every client, and their labels."""
    if files:
        if run.trained.classes and label not in run.views.classes:
            raise VitrailError(f"--label: give the label of the images, one of {', '.join(run.views.classes)}")
        y = torch.tensor([run.views.classes.index(str(label))] * len(files)) if run.trained.classes else None
        return read_images(run, files), y
    test, n = run.views.test, len(run.views.names)
    shuffled = Rng((0,)).child("pictures to restyle").numpy().permutation(len(test.client))
    own = [shuffled[test.client[shuffled] == k] for k in range(n)]
    some = test.take(np.array([own[k % n][k // n] for k in range(COLUMNS) if k // n < len(own[k % n])]))
    labels = some.images.labels
    return some.x, torch.from_numpy(labels) if run.trained.classes and labels is not None else None


def restyled_grid(maps: LatentMaps, x: Tensor, to: Sequence[str], y: Tensor | None = None, seed: int = 0) -> Tensor:
    """Return the images, and below them one row per style; in [0, 1]."""
    return (torch.cat([x, *(maps.restyle(x, name, y, seed) for name in to)]) + 1) / 2
