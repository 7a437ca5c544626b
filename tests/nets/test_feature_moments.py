"""Moments of a batch and their gradients, compared with torch's differentiation of the definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vitrail.nets.feature_moments import class_moments


def plain(layers: list[Tensor], y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """E[ψ] and E[ψ²], class by class; zeros where there is no image."""
    f = torch.cat([layer.flatten(1) for layer in layers], 1)
    none = f.new_zeros(f.shape[1])
    of = [f[y == c] for c in range(classes)]
    first, second = ([v.mean(0) if len(v) else none for v in vs] for vs in (of, [v.square() for v in of]))
    return torch.stack(first), torch.stack(second)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("classes", [1, 4])
def test_moments_and_gradients_do_not_depend_on_the_layout(classes: int, channels_last: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    shapes = [(6, 3, 4, 4), (6, 5, 2, 2), (6, 7, 1, 1)]
    layers = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]
    if channels_last:  # in memory, as ψ returns them
        layers = [f.contiguous(memory_format=torch.channels_last) for f in layers]
    layers = [f.requires_grad_() for f in layers]
    y = torch.tensor([0, 2, 2, 0, 0, 3]) % classes
    moments = class_moments(layers, y, classes)
    got, expected = (moments.first, moments.second), plain(layers, y, classes)
    torch.testing.assert_close(got, expected)
    weights = [torch.randn(g.shape, generator=draw, dtype=torch.float64) for g in expected]

    def gradients(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        total = sum((w * m).sum() for w, m in zip(weights, pair, strict=True))
        return torch.autograd.grad(total, layers)  # type: ignore[arg-type]

    torch.testing.assert_close(gradients(got), gradients(expected))
