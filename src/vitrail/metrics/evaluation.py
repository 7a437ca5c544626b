"""All measures of what a generator makes against held-out pictures, in one pass over it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.dataset import Dataset, Images
from vitrail.metrics import FAMILIES
from vitrail.metrics.distances import Distances
from vitrail.metrics.extractors import Extractor, choose_ruler, features_of, inception, own
from vitrail.metrics.measure import Measure
from vitrail.metrics.oracle import DownstreamClassifier, Oracle, Scores, oracle_for
from vitrail.metrics.pixels import Pairs
from vitrail.nets.features import was_trained_on
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import VitrailError, nearest
from vitrail.utils.rng import Rng

LABELLED = ("fd-oracle", "oracle", "learner")
FEWEST = 10  # pictures of a kind below which nothing is measured


class Shaped(Protocol):
    """What knows pictures of one shape and some classes."""

    @property
    def shape(self) -> tuple[int, int, int]: ...
    @property
    def classes(self) -> tuple[str, ...]: ...


class ImageSampler(Shaped, Protocol):
    """What is measured: a generator, or anything that gives pictures in [0, 1] with their labels."""

    @property
    def about(self) -> dict[str, Any]: ...
    def batches(self, n: int, label: Any = None, seed: int = 0) -> Iterator[tuple[Tensor, Tensor | None]]:
        """n pictures, a batch at a time."""
        ...


class Family(Protocol):
    """Measures that are computed together."""

    def update(self, pictures: Tensor, labels: Tensor | None) -> None:
        """Take in generated pictures in [-1, 1] and what was asked."""
        ...

    def compute(self) -> list[Measure]:
        """What they come to."""
        ...


def split_validation(held_out: Images) -> tuple[Images, Images]:
    """Held-out pictures, in those that a run is watched and its best round chosen with, and those that judge it."""
    order = Rng((0,)).child("validation").numpy().permutation(len(held_out))
    cut = min(len(order) // 5, 2000)
    return held_out.take(np.sort(order[:cut])), held_out.take(np.sort(order[cut:]))


def check_families(names: Iterable[str]) -> list[str]:
    """The names of families, all of them known."""
    chosen = list(names)
    for name in chosen:
        if name not in FAMILIES:
            raise VitrailError(f"metrics {name!r}: there is no such family; {nearest(name, FAMILIES)}")
    return chosen


def evaluate(
    generator: ImageSampler,
    data: Dataset,
    n: int = 5000,
    families: Iterable[str] | None = None,
    *,
    seed: int = 0,
    fid_n: int = 2000,
    ruler: str | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Measure]:
    """Measure n pictures of a generator against held-out pictures of the data; by default all that fits but fid.

    `ruler` is the network of fd-vitrail; by default one that the generator was not trained against.
    """
    check_fits(generator, data)
    _, test = split_validation(data.test)
    truth = test.labels if len(generator.classes) > 1 else None
    lacking = LABELLED if truth is None else ()
    chosen = check_families(f for f in FAMILIES if f not in ("fid", "classifier", *lacking)) if families is None else (
        check_families(families)
    )  # fmt: skip
    if "classifier" in chosen:
        raise VitrailError("classifier: this measures a run that made one, such as of psfedgan; give the run's folder")
    if unfit := [name for name in chosen if name in lacking]:
        raise VitrailError(f"{', '.join(unfit)}: needs two classes or more, which the model or the data lacks")
    if min(n, len(test)) < FEWEST:
        raise VitrailError(
            f"{n} generated and {len(test)} held-out pictures are too few to measure; give {FEWEST} or more of each"
        )
    judges = _Judges(generator, data, test, ruler, tell)
    y = None if truth is None else requested_labels(truth, len(generator.classes), n, seed)
    with one_thread(), torch.no_grad():  # the same bits on any number of cores
        built = {name: judges.family(name, fid_n) for name in chosen}
        done = 0
        for x, labels in generator.batches(n, y, seed):
            pictures = as_stored(x)
            asked = labels if truth is not None else None
            for name, family in built.items():
                room = fid_n - done if name == "fid" else len(pictures)
                if room > 0:
                    family.update(pictures[:room], None if asked is None else asked[:room])
            done += len(pictures)
            tell(f"generated and measured {done:,} of {n:,} pictures")
        found: list[Measure] = []
        for name, family in built.items():
            tell(f"computing {name}")
            found += family.compute()
    return found


def as_stored(x: Tensor) -> Tensor:
    """Pictures in [0, 1] as they would be in a file of 8 bits, in [-1, 1] as networks take them."""
    if not x.isfinite().all():
        raise VitrailError("the model makes pixels that are no numbers: its training diverged; train it anew")
    return (x * 255).round() / 127.5 - 1


def check_fits(model: Shaped, data: Dataset) -> None:
    """Refuse pictures of another shape, or classes of another kind."""
    if model.shape != data.shape:
        made, has = (" x ".join(map(str, shape)) for shape in (model.shape, data.shape))
        raise VitrailError(
            f"what is measured has pictures of {made} (channels, height, width), data={data.name} has {has}; "
            "measure it against data like that it was trained on"
        )
    if model.classes and data.classes and data.test.labels is not None and model.classes != data.classes:
        few = [", ".join(c[:5]) + ", ..." * (len(c) > 5) for c in (model.classes, data.classes)]
        raise VitrailError(
            f"the model knows the classes {few[0]}, data={data.name} has {few[1]}; measure it against data with the "
            "same classes"
        )


def requested_labels(labels: NDArray[np.int64], classes: int, n: int, seed: int) -> Tensor:
    """Labels to ask for, in the proportions of the real pictures, in a random order."""
    share = np.bincount(labels, minlength=classes)[:classes] / len(labels)
    upto = np.round(np.cumsum(share) * n).astype(np.int64)
    asked = np.repeat(np.arange(classes), np.diff(upto, prepend=0))
    return torch.from_numpy(Rng((seed,)).child("asked labels").numpy().permutation(asked))


class _Judges:
    """Builds families of measures; the oracle serves several of them and is made once."""

    def __init__(
        self, generator: ImageSampler, data: Dataset, test: Images, ruler: str | None, tell: Callable[[str], None]
    ) -> None:
        self.against = trained_against(generator)
        self.ruler = ruler or choose_ruler(data.name, self.against)
        if self.ruler in self.against:
            raise VitrailError(f"the model was trained against {self.ruler}, which may not rank it; take another ruler")
        self.data, self.test, self.classes, self.tell = data, test, len(generator.classes), tell
        self._oracle: Oracle | None = None

    @property
    def oracle(self) -> Oracle:
        if self._oracle is None:
            self.tell("an oracle: trained on real pictures once, then kept")
            self._oracle = oracle_for(self.data.train, self.test, len(self.data.classes))
        return self._oracle

    def family(self, name: str, fid_n: int) -> Family:
        match name:
            case "oracle":
                return Scores(self.oracle)
            case "learner":
                return DownstreamClassifier(self.data.train, self.test, self.classes)
            case "pixels":
                return Pairs(self.test, self.classes)
            case "fd-oracle":  # it has learned the labels: no probe
                return self._distances(self.oracle.extractor, self.test, name, probes=False)
            case "fid":
                order = Rng((0,)).child("fair sample").numpy().permutation(len(self.test))[:fid_n]
                return self._distances(inception(), self.test.take(np.sort(order)), name)
        usual = choose_ruler(self.data.name, [])
        note = f"not {usual}, which a model here was trained against" if self.ruler != usual else ""
        probes = not was_trained_on(self.ruler, self.data.name)
        return self._distances(own(self.ruler), self.test, name, note, probes)

    def _distances(
        self, extractor: Extractor, real: Images, name: str, note: str = "", probes: bool = True
    ) -> Distances:
        self.tell(f"features of {len(real):,} real pictures by {extractor.name}")
        return Distances(extractor, features_of(extractor, real), name, note, probes)


def trained_against(generator: ImageSampler) -> list[str]:
    """The networks a generator was trained to please: none of them may rank it."""
    return [name for name in generator.about.get("trained_against", []) if isinstance(name, str)]
