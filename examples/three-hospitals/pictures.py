"""Pictures for three hospitals, from the embedded digits: FOLDER/NAME/pictures/DIGIT/*.png."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.data import load

MOST, FEW = 30, 10  # pictures of a digit that a hospital sees most, and of any other


def make(folder: Path, hospitals: Sequence[str]) -> None:
    """Deal pictures out, none to two hospitals."""
    digits = load("mnist5k").train
    assert digits.labels is not None
    for label in range(10):
        here = iter(np.flatnonzero(digits.labels == label))
        for k, name in enumerate(hospitals):
            place = folder / name / "pictures" / str(label)
            place.mkdir(parents=True)
            for n in range(MOST if label % len(hospitals) == k else FEW):
                Image.fromarray(digits.pixels[next(here)].squeeze()).save(place / f"{n:03}.png")
