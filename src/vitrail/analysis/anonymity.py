"""Pictures through a reference client: is their content kept, and is it hidden whose they were?

Two classifiers that know nothing of PaDPaF judge: one of labels, trained on the clients' training pictures, and one of
clients. Hidden from a classifier that never saw such pictures is little, so a third one is trained on training
pictures that went the same way, with their owners as labels: what it still finds, a determined observer would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from torch import Tensor

from vitrail.analysis.latents import Maps
from vitrail.analysis.trained import Opened
from vitrail.analysis.views import View, as_tensor, mean_over_pictures
from vitrail.data.dataset import Images
from vitrail.metrics.measure import Measure
from vitrail.metrics.oracle import confidence, oracle_for, train_classifier
from vitrail.metrics.results_io import Column
from vitrail.utils.determinism import one_thread
from vitrail.utils.rng import Rng

Tell = Callable[[str], None]


def through(maps: Maps, view: View, reference: str, seed: int = 0) -> Images:
    """The pictures of a view with their content, in the reference client's style, as bytes."""
    y = _asked(maps, view)
    x = maps.restyle(view.x, reference, y, seed)
    return replace(view.pictures, pixels=((x + 1) * 127.5).round().clamp(0, 255).byte().numpy())


def _asked(maps: Maps, view: View) -> Tensor | None:
    labels = view.pictures.labels
    return as_tensor(labels) if maps.trained.method.task.classes and labels is not None else None


def measure_anonymity(
    opened: Opened, maps: Maps, reference: str, seed: int = 0, tell: Tell = lambda _: None
) -> list[Column]:
    """Labels and clients read off held-out pictures, before and after they went through the reference client.

    The reference client's own pictures are left out: there is nothing to hide.
    """
    own = opened.views.names.index(reference)
    train, test = (v.take(np.flatnonzero(v.client != own)) for v in (opened.views.train, opened.views.test))
    tell("pictures through the reference client")
    sent, shown = through(maps, train, reference, seed), through(maps, test, reference, seed + 1)
    before: list[Measure] = []
    after: list[Measure] = []

    def ask(what: str, real: tuple[Images, Images], fake: tuple[Images, Images], classes: int) -> None:
        """One classifier of real pictures, and one of pictures that went through; each on held-out ones."""
        tell(f"classifiers of the {what}: the one of real pictures is trained once, then kept")
        by, such = f"{what}, by a classifier of real pictures", f"{what}, by one trained on such pictures"
        usual = oracle_for(real[0], real[1], classes)
        again = train_classifier(fake[0], classes, Rng((0,)).child(f"{what} of restyled"))
        before.extend(_share(name, usual.right, test, what) for name in (by, such))
        after.append(_share(by, confidence(usual.net, fake[1])[0], test, what))
        after.append(_share(such, confidence(again, fake[1])[0], test, what))

    with one_thread():
        if train.pictures.labels is not None:
            ask("label", (opened.views.train.pictures, test.pictures), (sent, shown), len(opened.views.classes))
        real = _owners(train.pictures, train), _owners(test.pictures, test)
        fake = _owners(sent, train), _owners(shown, test)
        ask("client", real, fake, len(opened.views.names))
    return [Column("before", "", "", {}, before), Column(f"as {reference}", "", "", {}, after)]


def _owners(pictures: Images, view: View) -> Images:
    return Images(pictures.pixels, view.client)


def _share(name: str, right: np.ndarray, view: View, what: str) -> Measure:
    better = "higher" if what == "label" else "lower"
    chance = "" if what == "label" else f"chance: {1 / len(np.unique(view.client)):.1%}"
    bounded = mean_over_pictures(np.asarray(right, np.float64), view.shows)
    return Measure(name, *bounded, len(right), 0, better, f"{what} ({better} is better)", chance)  # type: ignore[arg-type]
