"""Metrics by name, for `vitrail evaluate --metrics NAME`. Imports no torch, so that listing them is fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from vitrail.utils.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.metrics.context import MetricContext
    from vitrail.metrics.measure import Measure


class Metric(Protocol):
    """A metric of generated images, or several that are computed together.

    It is created with the `MetricContext` of an evaluation; then `update` is called for each batch, and `compute` once.

    Examples:
        >>> from vitrail.data import load
        >>> from vitrail.metrics.evaluation import evaluate
        >>> from vitrail.metrics.samples import Samples
        >>> @METRICS.register("brightness", "mean pixel of generated minus that of real images")
        ... class Brightness:
        ...     def __init__(self, context):
        ...         self.real = context.test.pixels.mean() / 127.5 - 1
        ...         self.total, self.n = 0.0, 0
        ...
        ...     def update(self, images, labels):
        ...         self.total, self.n = self.total + float(images.mean()) * len(images), self.n + len(images)
        ...
        ...     def compute(self):
        ...         return self.total / self.n - self.real
        >>> digits = load("digits", size=8)
        >>> (m,) = evaluate(Samples.of(digits), digits, 500, ["brightness"])
        >>> m.name, m.n_fake, abs(m.value) < 0.1
        ('brightness', 500, True)
    """

    def update(self, images: Tensor, labels: Tensor | None) -> None:
        """Add a batch of generated images.

        Args:
            images: Images (n, channels, height, width) in [-1, 1], rounded to 8 bits.
            labels: The requested class indices (n,); None without labels.
        """
        ...

    def compute(self) -> Sequence[Measure] | Mapping[str, float] | float:
        """Return results with their intervals, or plain numbers: by name, or one that has the metric's name.

        Returns:
            A list of `Measure`, a dict of numbers, or one number.
        """
        ...


_SUMMARIES = {
    "fd-vitrail": "Fréchet and kernel distance, precision, recall, density, coverage, linear probe; "
    "network of this package",
    "fd-oracle": "the same in the features of an oracle, a classifier trained on real images",
    "fid": "the same in FID's Inception-v3; slow without a GPU, so on fewer samples, and never by default",
    "oracle": "Score and oracle gap of Fan & Liu",
    "pixels": "SSIM and NMSE against real images of the same class",
    "classifier": "accuracy of the classifier that a run trained, if it trained one",
    "learner": "accuracy on real images of a classifier trained on generated ones",
}

METRICS: Registry[Callable[[MetricContext], Metric]] = Registry(
    "metric",
    "vitrail.metrics",
    {name: (f"vitrail.metrics.builtin:{name.replace('-', '_')}", text) for name, text in _SUMMARIES.items()},
)
"""Metrics that `--metrics` accepts.

An entry is a class or function that is called with a `MetricContext` and returns a `Metric`. Built-in metrics except
fid and classifier are computed by default; registered ones when they are named.
"""

DEFAULT = ("fd-vitrail", "fd-oracle", "oracle", "pixels", "learner")
