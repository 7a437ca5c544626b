"""A metric: `vitrail evaluate RUN --metrics brightness`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from vitrail.metrics.context import MetricContext


class Brightness:
    """Mean pixel of the generated images minus that of the real ones; 0 is best."""

    def __init__(self, context: MetricContext) -> None:
        self.real = float(context.test.pixels.mean()) / 127.5 - 1
        self.total, self.n = 0.0, 0

    def update(self, images: Tensor, labels: Tensor | None) -> None:
        self.total, self.n = self.total + float(images.mean()) * len(images), self.n + len(images)

    def compute(self) -> float:
        return self.total / self.n - self.real
