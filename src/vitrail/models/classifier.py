"""A trained classifier of images in [0, 1]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.models.limits import SAMPLE_BATCH
from vitrail.utils.errors import VitrailError


@dataclass(frozen=True)
class Classifier:
    """A trained classifier, as `vitrail.load_classifier` returns it.

    Args:
        net: The network: images in [-1, 1] to logits.
        shape: Channels, height and width of an image.
        classes: Names of the classes.
        about: Facts about the model.

    Examples:
        >>> from vitrail.nets.classifier import build_classifier
        >>> model = Classifier(build_classifier(1, 2).eval(), (1, 8, 8), ("cat", "dog"), {})
        >>> model.classify(torch.zeros(3, 1, 8, 8)).shape
        torch.Size([3])
    """

    net: nn.Module
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    about: dict[str, Any]

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """Compute the logits of images.

        Args:
            images: Images (n, channels, height, width) in [0, 1].

        Returns:
            Logits (n, classes).

        Raises:
            VitrailError: If the images have another shape than the classifier takes.

        Examples:
            >>> from vitrail.nets.classifier import build_classifier
            >>> model = Classifier(build_classifier(1, 2).eval(), (1, 8, 8), ("cat", "dog"), {})
            >>> model.logits(torch.zeros(3, 1, 8, 8)).shape
            torch.Size([3, 2])
        """
        if tuple(images.shape[1:]) != self.shape:
            raise VitrailError(f"images of {tuple(images.shape[1:])}; this classifier takes {self.shape} in [0, 1]")
        parts = [self.net(x * 2 - 1) for x in images.split(SAMPLE_BATCH)]
        return torch.cat(parts) if parts else torch.empty(0, len(self.classes))

    def classify(self, images: Tensor) -> Tensor:
        """Predict the class of each image.

        Args:
            images: Images (n, channels, height, width) in [0, 1].

        Returns:
            The index of the most likely class of each image, (n,).

        Raises:
            VitrailError: If the images have another shape than the classifier takes.

        Examples:
            >>> from vitrail.nets.classifier import build_classifier
            >>> model = Classifier(build_classifier(1, 2).eval(), (1, 8, 8), ("cat", "dog"), {})
            >>> len([model.classes[k] for k in model.classify(torch.rand(3, 1, 8, 8))])
            3
        """
        return self.logits(images).argmax(1)
