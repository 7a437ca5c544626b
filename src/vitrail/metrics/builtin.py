"""The built-in metrics of METRICS, each built from a MetricContext."""

from __future__ import annotations

import numpy as np

from vitrail.metrics.context import MetricContext
from vitrail.metrics.distances import Distances
from vitrail.metrics.extractors import choose_feature_network, load_extractor, load_inception_extractor
from vitrail.metrics.oracle import DownstreamClassifier, Scores
from vitrail.metrics.pixels import Pairs
from vitrail.metrics.registry import Metric
from vitrail.nets.features import was_trained_on
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng


def fd_vitrail(context: MetricContext) -> Distances:
    """Distances by a network of this package; a probe only if the network has not seen the data's labels."""
    name = context.data.name
    usual = choose_feature_network(name, [])
    note = f"not {usual}, which a model here was trained against" if context.feature_network != usual else ""
    probes = not was_trained_on(context.feature_network, name)
    return context.distances(load_extractor(context.feature_network), context.test, "fd-vitrail", note, probes)


def fd_oracle(context: MetricContext) -> Distances:
    """Distances by the oracle; no probe, because the oracle was trained with the labels."""
    return context.distances(context.oracle.extractor, context.test, "fd-oracle", probes=False)


def fid(context: MetricContext) -> Distances:
    """Distances by FID's Inception-v3, on at most `fid_images` images of each set."""
    most = context.fid_images
    order = Rng((0,)).child("fair sample").numpy().permutation(len(context.test))[:most]
    found = context.distances(load_inception_extractor(), context.test.take(np.sort(order)), "fid")
    found.max_images = most
    return found


def oracle(context: MetricContext) -> Scores:
    """Score and oracle gap."""
    return Scores(context.oracle)


def pixels(context: MetricContext) -> Pairs:
    """SSIM and NMSE."""
    return Pairs(context.test, context.classes)


def learner(context: MetricContext) -> DownstreamClassifier:
    """Accuracy of a classifier trained on generated images."""
    return DownstreamClassifier(context.data.train, context.test, context.classes)


def classifier(context: MetricContext) -> Metric:  # noqa: ARG001
    """Refuse: the classifier of a run is measured with the run's folder, not with a generator."""
    raise VitrailError("classifier: this measures the classifier that a run trained; give the run's folder")
