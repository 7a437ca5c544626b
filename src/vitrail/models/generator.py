"""A trained generator: noise and labels to images in [0, 1]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.models.image_grid import grid_columns, write_grid
from vitrail.models.limits import SAMPLE_BATCH
from vitrail.nets.masked import Ensemble
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng

Label = int | str | Sequence[int] | Tensor | None


@dataclass(frozen=True)
class Generator:
    """A trained generator, as `vitrail.load` returns it. The same seed gives the same images.

    Args:
        net: The network: noise (n, z) and labels (n,) or None to images in [-1, 1].
        z: Number of noise dimensions.
        shape: Channels, height and width of an image.
        classes: Names of the classes; empty without labels.
        about: Facts about the model: data, privacy, bytes sent and so on.
        per_pass: Images that the network computes at once; fewer for a network that is large for its file.
        kind: Model kind of the file; empty: made in memory.

    Examples:
        >>> from vitrail.nets.dcgan import DcganGenerator
        >>> generator = Generator(DcganGenerator((1, 8, 8), 2, 4, 8).eval(), 8, (1, 8, 8), ("cat", "dog"), {})
        >>> generator.sample(3, label="dog", seed=1).shape
        torch.Size([3, 1, 8, 8])
    """

    net: nn.Module
    z: int
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    about: dict[str, Any]
    per_pass: int = SAMPLE_BATCH
    kind: str = ""

    def labels(self, n: int, label: Label = None) -> Tensor | None:
        """Return the labels of n images.

        Args:
            n: Number of images.
            label: A class name or index for all images, one index per image, or None for all classes in turn.

        Returns:
            Class indices (n,), or None for a generator without labels.

        Raises:
            VitrailError: If the label is unknown or the number of labels is not n.

        Examples:
            >>> from vitrail.nets.dcgan import DcganGenerator
            >>> generator = Generator(DcganGenerator((1, 8, 8), 2, 4, 8).eval(), 8, (1, 8, 8), ("cat", "dog"), {})
            >>> generator.labels(4).tolist(), generator.labels(4, "dog").tolist()
            ([0, 1, 0, 1], [1, 1, 1, 1])
        """
        if not self.classes:
            if label is not None:
                raise VitrailError("this generator was trained without labels; remove the label")
            return None
        if label is None:
            return torch.arange(n) % len(self.classes)
        if isinstance(label, str):
            if label not in self.classes:
                raise VitrailError(f"label {label!r} is not known; this generator has {', '.join(self.classes)}")
            label = self.classes.index(label)
        y = torch.as_tensor(label, dtype=torch.int64).expand(n) if np.ndim(label) == 0 else torch.as_tensor(label)
        if y.shape != (n,) or not ((y >= 0) & (y < len(self.classes))).all():
            known = f"0 to {len(self.classes) - 1}: {', '.join(self.classes)}"
            raise VitrailError(f"label {label!r} is not known, or is not one label for each of {n} images; use {known}")
        return y

    @property
    def page(self) -> int:
        """Number of images of a readable grid: eight per class, or 64."""
        return 8 * len(self.classes) if 0 < len(self.classes) <= 20 else 64

    def sample(self, n: int = 64, label: Label = None, seed: int = 0) -> Tensor:
        """Generate n images.

        Args:
            n: Number of images.
            label: Label of the images, as for `labels`.
            seed: Seed of the noise; the same seed gives the same images.

        Returns:
            Images (n, channels, height, width), float32 in [0, 1].

        Raises:
            VitrailError: If the label is unknown or the number of labels is not n.

        Examples:
            >>> from vitrail.nets.dcgan import DcganGenerator
            >>> generator = Generator(DcganGenerator((1, 8, 8), 2, 4, 8).eval(), 8, (1, 8, 8), ("cat", "dog"), {})
            >>> images = generator.sample(3, label=[0, 1, 1])
            >>> images.shape, bool((images == generator.sample(3, label=[0, 1, 1])).all())
            (torch.Size([3, 1, 8, 8]), True)
        """
        batches = [x for x, _ in self.batches(n, label, seed)]
        return torch.cat(batches) if batches else torch.empty(0, *self.shape)

    def batches(self, n: int, label: Label = None, seed: int = 0) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the images of `sample` with their labels in batches, so that memory does not grow with n.

        Args:
            n: Number of images in all.
            label: Label of the images, as for `labels`.
            seed: Seed of the noise.

        Yields:
            Images (batch, channels, height, width) in [0, 1], and their class indices (batch,) or None.

        Examples:
            >>> from vitrail.nets.dcgan import DcganGenerator
            >>> generator = Generator(DcganGenerator((1, 8, 8), 2, 4, 8).eval(), 8, (1, 8, 8), ("cat", "dog"), {})
            >>> sum(len(images) for images, labels in generator.batches(1000))
            1000
        """
        y = self.labels(n, label)
        draw = Rng((seed,)).child("sample").torch()
        for at in range(0, n, SAMPLE_BATCH):
            z = torch.randn(min(SAMPLE_BATCH, n - at), self.z, generator=draw)
            labels = None if y is None else y[at : at + SAMPLE_BATCH]
            with torch.no_grad():
                x = self._images(z, labels)
            yield x.add_(1).div_(2).clamp_(0, 1), labels

    def _images(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """Compute one batch in equal parts of at most `per_pass` images; an ensemble has one mask for all parts."""
        parts = -(-len(z) // self.per_pass)
        if parts == 1:
            return self.net(z, labels)
        net = self.net.for_batch(z) if isinstance(self.net, Ensemble) else self.net
        ys = [None] * parts if labels is None else labels.tensor_split(parts)
        return torch.cat([net(part, y) for part, y in zip(z.tensor_split(parts), ys, strict=True)])

    def grid(
        self, path: str | Path, n: int = 64, label: int | str | Sequence[int] | None = None, seed: int = 0
    ) -> None:
        """Write a PNG of n images; with labels, each column has one class.

        Args:
            path: The file to write.
            n: Number of images.
            label: Label of all images, as for `labels`; None: all classes in turn.
            seed: Seed of the noise.

        Examples:
            >>> import tempfile
            >>> from vitrail.nets.dcgan import DcganGenerator
            >>> generator = Generator(DcganGenerator((1, 8, 8), 2, 4, 8).eval(), 8, (1, 8, 8), ("cat", "dog"), {})
            >>> file = Path(tempfile.mkdtemp()) / "grid.png"
            >>> generator.grid(file, n=8)
            >>> file.exists()
            True
        """
        columns = grid_columns(n, len(self.classes)) if self.classes and label is None else 0
        write_grid(Path(path), self.sample(n, label, seed), columns)
