"""Decoded images in a folder, from which processes map them into memory without reading them."""

from __future__ import annotations

import shutil
from dataclasses import fields
from pathlib import Path
from secrets import token_hex

import numpy as np

from vitrail.data.dataset import Images


def write_mmap(images: Images, folder: Path) -> None:
    """Write images to a new folder, readable by its owner alone; the folder appears complete or not at all."""
    part = folder.with_name(f".{folder.name}.{token_hex(4)}.part")
    part.mkdir(mode=0o700, parents=True)
    try:
        for f in fields(images):
            if (array := getattr(images, f.name)) is not None:
                np.save(part / f"{f.name}.npy", array)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def read_mmap(folder: Path) -> Images:
    """Map the images of a folder, copy-on-write: torch requires writable arrays."""
    files = {f.name: folder / f"{f.name}.npy" for f in fields(Images)}
    return Images(**{name: np.load(path, mmap_mode="c") for name, path in files.items() if path.exists()})
