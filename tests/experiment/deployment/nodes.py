"""A node with digits or a folder of images, for tests."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.experiment.deployment.node import Node

SHARE = {"partition": "iid", "partition-id": 1, "num-partitions": 3}


def node(tmp_path: Path, **given) -> Node:
    return Node.of({"name": "client-1", "data": "digits", "folder": str(tmp_path / "node"), "device": "cpu", **given})


def images(folder: Path, label: str, n: int = 20) -> Path:
    """Grey images below a label's folder."""
    (folder / label).mkdir(parents=True, exist_ok=True)
    for i in range(n):
        Image.fromarray(np.full((8, 8), i, np.uint8)).save(folder / label / f"{i}.png")
    return folder


def unread(path: Path) -> None:
    """Make an image undecodable, with its size and times unchanged."""
    was = path.stat()
    path.write_bytes(b"x" * was.st_size)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


def folder_of_images(root: Path, n: int = 20) -> Path:
    root.mkdir(parents=True)
    for i in range(n):
        Image.fromarray(np.full((8, 8), i, np.uint8)).save(root / f"{i}.png")
    return root
