"""What a metric may use: real images, the classes, the network that ranks, and an oracle that is trained once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from vitrail.data.dataset import Dataset, Images
from vitrail.metrics.distances import Distances
from vitrail.metrics.extractors import Extractor, features_of
from vitrail.metrics.oracle import Oracle, oracle_for
from vitrail.utils.errors import VitrailError


@dataclass(frozen=True)
class MetricContext:
    """Inputs of the metrics of one evaluation.

    Args:
        data: The real data; metrics may train on `data.train` and compare with `test`.
        test: The test images that no round of the run was chosen with.
        classes: Number of classes of the generator; 0 without labels.
        feature_network: Name of the package's network that ranks models here.
        fid_images: Largest number of images, real and generated, for metrics by Inception-v3.
        report_progress: Called with a line of text on progress.

    Examples:
        >>> from vitrail.data import load
        >>> digits = load("digits", size=8)
        >>> context = MetricContext(digits, digits.test, 10, "vitrail-cifar", 1000, print)
        >>> context.require_labels("my-metric")  # raises for images without labels
        >>> context.test.pixels.shape[1:]
        (1, 8, 8)
    """

    data: Dataset
    test: Images
    classes: int
    feature_network: str
    fid_images: int
    report_progress: Callable[[str], None]

    @cached_property
    def oracle(self) -> Oracle:
        """A classifier trained on real images, shared by the metrics that need one."""
        self.report_progress("training an oracle on real images, or reading it from the cache")
        return oracle_for(self.data.train, self.test, len(self.data.classes))

    def distances(
        self, extractor: Extractor, real: Images, name: str, note: str = "", probes: bool = True
    ) -> Distances:
        """Return the distances by a feature network, with the features of real images computed.

        Args:
            extractor: The feature network.
            real: The real images.
            name: Prefix of the measures' names.
            note: Remark on every measure.
            probes: Whether to train linear probes on labelled images, too.

        Returns:
            Distances that are updated with batches of generated images, as a metric is.

        Examples:
            >>> import numpy as np, torch
            >>> from vitrail.data import load
            >>> from vitrail.metrics.extractors import load_extractor
            >>> digits = load("digits", size=8)
            >>> context = MetricContext(digits, digits.test, 10, "vitrail-cifar", 1000, print)
            >>> real = digits.test.take(np.arange(20))
            >>> distances = context.distances(load_extractor("vitrail-cifar"), real, "fd", probes=False)
            features of 20 real images by vitrail-cifar
            >>> distances.update(torch.rand(10, 1, 8, 8) * 2 - 1, None)
        """
        self.report_progress(f"features of {len(real):,} real images by {extractor.name}")
        return Distances(extractor, features_of(extractor, real), name, note, probes)

    def require_labels(self, metric: str) -> None:
        """Check that the generator and the test images have labels.

        Args:
            metric: Name of the metric, for the error.

        Raises:
            VitrailError: If they have none.

        Examples:
            >>> from vitrail.data import load
            >>> data = load("digits", size=8).without_labels()
            >>> MetricContext(data, data.test, 0, "vitrail-cifar", 1000, print).require_labels("my-metric")
            Traceback (most recent call last):
            vitrail.utils.errors.VitrailError: my-metric: needs two classes or more, which the model or the data lacks
        """
        if self.classes < 2 or self.test.labels is None:
            raise VitrailError(f"{metric}: needs two classes or more, which the model or the data lacks")
