"""Re-style images of a run, and measure anonymity by re-styling through a reference client.

Is content preserved, and is the client hidden? Independent classifiers of labels and of clients answer, trained on the
clients' training images. A classifier that never saw re-styled images is easy to deceive, so another one is trained on
re-styled training images with their clients as labels: it bounds what a determined observer would find.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitrail.analysis.latents import LatentMaps, learn_maps
from vitrail.analysis.trained import LoadedRun, Progress, load_run, read_images, save_measures
from vitrail.analysis.views import View, mean_over_images
from vitrail.data.dataset import Images
from vitrail.metrics.measure import Measure
from vitrail.metrics.oracle import confidence, oracle_for, train_classifier
from vitrail.metrics.results_io import Column
from vitrail.models.image_grid import write_grid
from vitrail.report.evaluation import print_measures
from vitrail.utils.console import Console, show_status
from vitrail.utils.determinism import one_thread
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
    run, console = load_run(folder), Console()
    names = run.views.names
    if to is not None and to not in names:
        raise VitrailError(f"--to {to}: there is no such client; {nearest(to, names)}")
    if measure and to is None:
        raise VitrailError("--measure: name the reference client with --to")
    steps, latent, seed = training
    with show_status() as report_progress:
        maps = learn_maps(run.trained, steps, latent, seed, report_progress)
        x, y = _select_images(run, files, label)
        write_grid(Path(out), restyled_grid(maps, x, [to] if to else names, y, seed), len(x))
        columns = measure_anonymity(run, maps, str(to), seed, report_progress) if measure else []
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
    return some.x, run.trained.labels(some)


def restyled_grid(maps: LatentMaps, x: Tensor, to: Sequence[str], y: Tensor | None = None, seed: int = 0) -> Tensor:
    """Return the images, and below them one row per style; in [0, 1]."""
    return (torch.cat([x, *(maps.restyle(x, name, y, seed) for name in to)]) + 1) / 2


def restyle_view(maps: LatentMaps, view: View, reference: str, seed: int = 0) -> Images:
    """Return the images of a view in the style of the reference client, as bytes."""
    x = maps.restyle(view.x, reference, maps.trained.labels(view), seed)
    return replace(view.images, pixels=((x + 1) * 127.5).round().clamp(0, 255).byte().numpy())


def measure_anonymity(
    run: LoadedRun, maps: LatentMaps, reference: str, seed: int = 0, progress: Progress = lambda _: None
) -> list[Column]:
    """Predict labels and clients of held-out images, before and after re-styling.

    Args:
        run: A run.
        maps: Its latent maps.
        reference: The client whose style all images get; its own images are excluded.
        seed: Seed of the styles.
        progress: Called with a message from time to time.

    Returns:
        Accuracies before and after, as two columns with the same measures.
    """
    own = run.views.names.index(reference)
    train, test = (v.take(np.flatnonzero(v.client != own)) for v in (run.views.train, run.views.test))
    progress("re-styling images with the reference client")
    styled_train = restyle_view(maps, train, reference, seed)
    styled_test = restyle_view(maps, test, reference, seed + 1)
    before: list[Measure] = []
    after: list[Measure] = []

    def classify(what: str, real: tuple[Images, Images], styled: tuple[Images, Images], classes: int) -> None:
        """Test one classifier of real images and one of re-styled images, both on held-out images."""
        progress(f"classifiers of the {what}: the one of real images is trained once and stored")
        by_real, by_styled = f"{what}, by a classifier of real images", f"{what}, by one trained on re-styled images"
        oracle = oracle_for(real[0], real[1], classes)
        observer = train_classifier(styled[0], classes, Rng((0,)).child(f"{what} of restyled"))
        before.extend(_accuracy(name, oracle.right, test, what) for name in (by_real, by_styled))
        after.append(_accuracy(by_real, confidence(oracle.net, styled[1])[0], test, what))
        after.append(_accuracy(by_styled, confidence(observer, styled[1])[0], test, what))

    with one_thread():
        if train.images.labels is not None:
            real, styled = (run.views.train.images, test.images), (styled_train, styled_test)
            classify("label", real, styled, len(run.views.classes))
        real = Images(train.images.pixels, train.client), Images(test.images.pixels, test.client)
        styled = Images(styled_train.pixels, train.client), Images(styled_test.pixels, test.client)
        classify("client", real, styled, len(run.views.names))
    return [Column("before", "", "", {}, before), Column(f"as {reference}", "", "", {}, after)]


def _accuracy(name: str, correct: np.ndarray, view: View, what: str) -> Measure:
    better = "higher" if what == "label" else "lower"
    note = "" if what == "label" else f"random guess: {1 / len(np.unique(view.client)):.1%}"
    bounded = mean_over_images(np.asarray(correct, np.float64), view.source)
    return Measure(name, *bounded, len(correct), 0, better, f"{what} ({better} is better)", note)  # type: ignore[arg-type]
