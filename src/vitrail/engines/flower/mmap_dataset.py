"""Pictures laid out in a folder, from where any process maps them into its memory without reading them through."""

from __future__ import annotations

import shutil
from dataclasses import fields
from pathlib import Path
from secrets import token_hex

import numpy as np

from vitrail.data.dataset import Images


def write_mmap(pictures: Images, place: Path) -> None:
    """Write pictures to a new folder, which only its owner can read; it is there whole or not at all."""
    part = place.with_name(f".{place.name}.{token_hex(4)}.part")
    part.mkdir(mode=0o700, parents=True)
    try:
        for f in fields(pictures):
            if (array := getattr(pictures, f.name)) is not None:
                np.save(part / f"{f.name}.npy", array)
        part.rename(place)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def read_mmap(place: Path) -> Images:
    """The pictures of a folder; torch wants arrays that can be written, and what is written stays in memory."""
    files = {f.name: place / f"{f.name}.npy" for f in fields(Images)}
    return Images(**{name: np.load(path, mmap_mode="c") for name, path in files.items() if path.exists()})
