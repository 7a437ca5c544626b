"""Images for three hospitals, from the embedded digits: FOLDER/NAME/images/DIGIT/*.png."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.data import load

MANY, FEW = 30, 10  # images of a frequent digit of a hospital, and of any other digit


def make(folder: Path, hospitals: Sequence[str]) -> None:
    """Write the images of each hospital; no image belongs to two of them."""
    digits = load("mnist5k").train
    assert digits.labels is not None
    for label in range(10):
        positions = iter(np.flatnonzero(digits.labels == label))
        for k, name in enumerate(hospitals):
            target = folder / name / "images" / str(label)
            target.mkdir(parents=True)
            for n in range(MANY if label % len(hospitals) == k else FEW):
                Image.fromarray(digits.pixels[next(positions)].squeeze()).save(target / f"{n:03}.png")
