"""Evaluation of a generator: all metrics against test images, in one pass over the generated images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.dataset import Dataset, Images
from vitrail.metrics.context import MetricContext
from vitrail.metrics.extractors import choose_feature_network
from vitrail.metrics.measure import UNSET, Measure
from vitrail.metrics.registry import DEFAULT, METRICS, Metric
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import VitrailError, nearest
from vitrail.utils.rng import Rng

if TYPE_CHECKING:
    from vitrail.metrics.samples import Samples
    from vitrail.models.classifier import Classifier
    from vitrail.models.generator import Generator

LABELLED = ("fd-oracle", "oracle", "learner")  # built-in metrics that need labels
MIN_IMAGES = 10  # of each set, below which nothing is measured


def split_validation(test: Images) -> tuple[Images, Images]:
    """Split test images into those that choose the best round of a run and those that evaluate it.

    Args:
        test: All test images.

    Returns:
        A fifth of the images, at most 2,000, and the others.

    Examples:
        >>> [len(part) for part in split_validation(Images(np.zeros((100, 1, 8, 8), np.uint8)))]
        [20, 80]
    """
    order = Rng((0,)).child("validation").numpy().permutation(len(test))
    cut = min(len(order) // 5, 2000)
    return test.take(np.sort(order[:cut])), test.take(np.sort(order[cut:]))


def check_metrics(metrics: Iterable[str | Callable[[MetricContext], Metric]]) -> list[str]:
    """Return the names of metrics as a list; a class is registered under a name derived from its own.

    Raises:
        VitrailError: If a metric is not registered.

    Examples:
        >>> check_metrics(["fidd"])
        Traceback (most recent call last):
        vitrail.utils.errors.VitrailError: metrics 'fidd': not registered; did you mean fid? (or set VITRAIL_PLUGINS)
    """
    chosen = [m if isinstance(m, str) else METRICS.name_of(m) for m in metrics]
    for name in chosen:
        if name not in METRICS:
            raise VitrailError(f"metrics {name!r}: not registered; {nearest(name, METRICS)} (or set VITRAIL_PLUGINS)")
    return chosen


def evaluate(
    generator: Generator | Samples,
    data: Dataset,
    n: int = 5000,
    families: Iterable[str] | None = None,
    *,
    seed: int = 0,
    fid_n: int = 2000,
    feature_network: str | None = None,
    report_progress: Callable[[str], None] = lambda _: None,
) -> list[Measure]:
    """Measure generated images against test images.

    Args:
        generator: The generator, or other images (`vitrail.metrics.samples.Samples`).
        data: The real data.
        n: Number of generated images.
        families: Names of METRICS; by default all built-in ones that the data allows, except fid.
        seed: Seed of the noise and of the order of labels.
        fid_n: Largest number of images, real and generated, for fid.
        feature_network: The feature network of fd-vitrail; by default one that the generator was not trained against.
        report_progress: Called with a line of text on progress.

    Returns:
        The results, each with its 95% interval, counts and network.

    Raises:
        VitrailError: If a metric is unknown or needs labels that are missing, the images have other shapes or classes
            than the data, there are too few images, or the generator was trained against that network.
    """
    check_fits(generator, data)
    _, test = split_validation(data.test)
    truth = test.labels if len(generator.classes) > 1 else None
    lacking = LABELLED if truth is None else ()
    chosen = check_metrics([f for f in DEFAULT if f not in lacking] if families is None else families)
    if unfit := [name for name in chosen if name in lacking]:
        raise VitrailError(f"{', '.join(unfit)}: needs two classes or more, which the model or the data lacks")
    if min(n, len(test)) < MIN_IMAGES:
        raise VitrailError(
            f"{n} generated and {len(test)} test images are too few to measure; {MIN_IMAGES} of each are needed"
        )
    against = trained_against(generator)
    feature_network = feature_network or choose_feature_network(data.name, against)
    if feature_network in against:
        raise VitrailError(
            f"the model was trained against {feature_network}, which may not rank it; choose another feature network"
        )
    context = MetricContext(data, test, len(generator.classes), feature_network, fid_n, report_progress)
    y = None if truth is None else requested_labels(truth, len(generator.classes), n, seed)
    with one_thread(), torch.no_grad():  # the same bits on any number of cores
        metrics = {name: METRICS[name](context) for name in chosen}
        done = 0
        for x, labels in generator.batches(n, y, seed):
            images = round_to_8_bits(x)
            for metric in metrics.values():
                metric.update(images, labels if truth is not None else None)
            done += len(images)
            report_progress(f"generated and measured {done:,} of {n:,} images")
        found: list[Measure] = []
        for name, metric in metrics.items():
            report_progress(f"computing {name}")
            found += _measures(name, metric.compute(), len(test), done)
    return found


def _measures(
    name: str, result: Sequence[Measure] | Mapping[str, float] | float, n_real: int, n_fake: int
) -> Sequence[Measure]:
    """Return the result of a metric as measures; plain numbers have no interval, counts that it omits are added."""
    if isinstance(result, Sequence) and all(isinstance(m, Measure) for m in result):
        found = list(result)
    else:
        values: Mapping[str, Any] = result if isinstance(result, Mapping) else {name: result}
        try:
            found = [Measure(k, float(v)) for k, v in values.items()]
        except (TypeError, ValueError) as e:
            raise VitrailError(
                f"metric {name}: compute() returned {result!r:.80}, expected a number, a dict of numbers by name, or a "
                "list of vitrail.metrics.measure.Measure"
            ) from e
    return [
        replace(m, n_real=n_real if m.n_real == UNSET else m.n_real, n_fake=n_fake if m.n_fake == UNSET else m.n_fake)
        for m in found
    ]


def round_to_8_bits(x: Tensor) -> Tensor:
    """Round images in [0, 1] to 8 bits, as a file would, and scale them to [-1, 1] for networks.

    Raises:
        VitrailError: If a pixel is not finite.
    """
    if not x.isfinite().all():
        raise VitrailError("the model generates pixels that are not finite: its training diverged; train it again")
    return (x * 255).round() / 127.5 - 1


def check_fits(model: Generator | Samples | Classifier, data: Dataset) -> None:
    """Check that a model's images and classes are those of the data.

    Raises:
        VitrailError: If the shapes or the classes differ.
    """
    who = "the model has" if hasattr(model, "net") else "the given images have"
    if model.shape != data.shape:
        made, has = (" x ".join(map(str, shape)) for shape in (model.shape, data.shape))
        raise VitrailError(
            f"{who} the shape {made} (channels, height, width), data={data.name} has {has}; "
            "measure it against data like its training data"
        )
    if model.classes and data.classes and data.test.labels is not None and model.classes != data.classes:
        few = [", ".join(c[:5]) + ", ..." * (len(c) > 5) for c in (model.classes, data.classes)]
        raise VitrailError(
            f"{who} the classes {few[0]}, data={data.name} has {few[1]}; measure it against data with the same classes"
        )


def requested_labels(labels: NDArray[np.int64], classes: int, n: int, seed: int) -> Tensor:
    """Return n labels in random order, in the proportions of the real images.

    Args:
        labels: Labels of the real images.
        classes: Number of classes of the generator.
        n: Number of labels.
        seed: Seed of the order.
    """
    share = np.bincount(labels, minlength=classes)[:classes] / len(labels)
    upto = np.round(np.cumsum(share) * n).astype(np.int64)
    requested = np.repeat(np.arange(classes), np.diff(upto, prepend=0))
    return torch.from_numpy(Rng((seed,)).child("asked labels").numpy().permutation(requested))


def trained_against(generator: Generator | Samples) -> list[str]:
    """Return the feature networks that a generator was trained against; none of them may rank it."""
    return [name for name in generator.about.get("trained_against", []) if isinstance(name, str)]
