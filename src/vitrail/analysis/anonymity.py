"""Anonymity by re-styling through a reference client: is content preserved, and is the client hidden?

Independent classifiers answer: one of labels and one of clients, trained on the clients' training images. A classifier
that never saw re-styled images is easy to deceive, so another one is trained on re-styled training images with their
clients as labels: it bounds what a determined observer would find.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from torch import Tensor

from vitrail.analysis.latents import LatentMaps
from vitrail.analysis.trained import LoadedRun
from vitrail.analysis.views import View, as_tensor, mean_over_images
from vitrail.data.dataset import Images
from vitrail.metrics.measure import Measure
from vitrail.metrics.oracle import confidence, oracle_for, train_classifier
from vitrail.metrics.results_io import Column
from vitrail.utils.determinism import one_thread
from vitrail.utils.rng import Rng

Progress = Callable[[str], None]


def restyle_view(maps: LatentMaps, view: View, reference: str, seed: int = 0) -> Images:
    """Return the images of a view in the style of the reference client, as bytes."""
    x = maps.restyle(view.x, reference, _labels(maps, view), seed)
    return replace(view.images, pixels=((x + 1) * 127.5).round().clamp(0, 255).byte().numpy())


def _labels(maps: LatentMaps, view: View) -> Tensor | None:
    labels = view.images.labels
    return as_tensor(labels) if maps.trained.classes and labels is not None else None


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
    styled_train, styled_test = (
        restyle_view(maps, train, reference, seed),
        restyle_view(maps, test, reference, seed + 1),
    )
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
            classify(
                "label", (run.views.train.images, test.images), (styled_train, styled_test), len(run.views.classes)
            )
        real = _with_clients(train.images, train), _with_clients(test.images, test)
        styled = _with_clients(styled_train, train), _with_clients(styled_test, test)
        classify("client", real, styled, len(run.views.names))
    return [Column("before", "", "", {}, before), Column(f"as {reference}", "", "", {}, after)]


def _with_clients(images: Images, view: View) -> Images:
    return Images(images.pixels, view.client)


def _accuracy(name: str, correct: np.ndarray, view: View, what: str) -> Measure:
    better = "higher" if what == "label" else "lower"
    note = "" if what == "label" else f"random guess: {1 / len(np.unique(view.client)):.1%}"
    bounded = mean_over_images(np.asarray(correct, np.float64), view.source)
    return Measure(name, *bounded, len(correct), 0, better, f"{what} ({better} is better)", note)  # type: ignore[arg-type]
