"""Several generators as one: a picture comes from one of them, drawn by a number of the noise."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Mixture(nn.Module):
    """One more noise dimension than its parts: it says which of those that know the label makes the picture.

    `knows` has a row for each part and a column for each class. A class that nobody knows may come from anybody.
    """

    knows: Tensor

    def __init__(self, parts: Sequence[nn.Module], z: int, knows: Tensor) -> None:
        super().__init__()
        if not parts or knows.shape[0] != len(parts):
            raise ValueError(f"a mixture of {len(parts)} generators with labels of {knows.shape[0]}")
        self.parts, self.z = nn.ModuleList(parts), z + 1
        self.register_buffer("knows", knows.bool())

    def component(self, u: Tensor, y: Tensor | None) -> Tensor:
        """Which part makes each picture, for u within (0, 1)."""
        able = torch.ones(len(u), len(self.parts), dtype=torch.bool, device=u.device)
        if y is not None and self.knows.shape[1]:
            able = self.knows.T[y]
            able = able | ~able.any(1, keepdim=True)
        count = able.sum(1)
        nth = (u * count).long().clamp(max=count - 1) + 1
        return (able.cumsum(1) >= nth[:, None]).int().argmax(1)

    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        who = self.component(torch.special.ndtr(z[:, -1]), y)
        made: list[Tensor] = []
        places: list[Tensor] = []
        for k, G in enumerate(self.parts):
            if len(mine := (who == k).nonzero()[:, 0]):
                made.append(G(z[mine, :-1], None if y is None else y[mine]))
                places.append(mine)
        return torch.cat(made)[torch.cat(places).argsort()]


def knows(labels: Sequence[Sequence[int]], classes: int) -> Tensor:
    """Which part knows which class, from the labels of each.

    >>> knows([[0], [0, 2]], 3).int().tolist()
    [[1, 0, 0], [1, 0, 1]]
    """
    table = torch.zeros(len(labels), classes, dtype=torch.bool)
    for row, known in zip(table, labels, strict=True):
        row[list(known)] = True
    return table
