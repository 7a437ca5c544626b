"""Image files in one folder, in one folder per label, or in one folder per client and label."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrail.data.arrays import as_labels
from vitrail.data.dataset import Dataset, Images
from vitrail.data.decode import ENDINGS, all_grey, decode_all
from vitrail.data.read_request import ReadRequest
from vitrail.utils.errors import MissingFiles, VitrailError


def read(request: ReadRequest) -> Dataset:
    """Read the images under a folder, or under its folders train and test if it has both."""
    root = Path(request.source.argument).expanduser()
    if not root.is_dir():
        raise MissingFiles(f"data={request.source}: there is no folder", root, "give the path of a folder of images")
    both = (root / "train").is_dir() and (root / "test").is_dir()
    parts = [root / "train", root / "test"] if both else [root]
    files = [image_files(part) for part in parts]
    folders = [[f.relative_to(part).parts[:-1] for f in own] for part, own in zip(parts, files, strict=True)]
    _check_levels(root, files, folders)
    grey = all_grey((str(path), str(path)) for own in files for path in own)

    def numbered(level: int) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None, tuple[str, ...]]:
        names = [[parts[level] for parts in own] if own[0] else None for own in folders]
        return as_labels(names[0], names[1] if both else None, str(root))

    def images(own: list[Path], labels: NDArray[np.int64] | None, groups: NDArray[np.int64] | None) -> Images:
        named = ((str(path), str(path)) for path in own)
        return Images(decode_all(named, len(own), grey, "decoding images", request), labels, groups=groups)

    labels, test_labels, classes = numbered(-1)
    group, test_group, groups = numbered(0)
    train = images(files[0], labels, group)
    return request.dataset(train, images(files[1], test_labels, test_group) if both else None, classes, groups=groups)


def image_files(root: Path) -> list[Path]:
    """List the image files under a folder, sorted by path; none is opened. Hidden and other files are skipped."""
    files: list[Path] = []
    seen: set[str] = set()
    for here, folders, names in os.walk(root, followlinks=True):
        real = os.path.realpath(here)
        if real in seen:  # a link to a parent folder, or a second path to one
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(f for f in folders if not f.startswith((".", "__MACOSX")))
        files += [Path(here, n) for n in names if n[0] != "." and n.lower().endswith(ENDINGS)]
    return sorted(f for f in files if f.is_file())


def _check_levels(root: Path, files: list[list[Path]], folders: list[list[tuple[str, ...]]]) -> None:
    """Check that all images are at the same level of sub-folders, at most the second."""
    if not all(files):
        raise VitrailError(f"data=folder:{root}: no images found; give a folder with files such as .png or .jpg")
    example: dict[int, Path] = {}
    for path, names in zip(chain(*files), chain(*folders), strict=True):
        example.setdefault(len(names), path)
    if len(example) > 1 or max(example) > 2:
        raise VitrailError(
            f"data=folder:{root}: images are at different or too many levels of sub-folders, such as "
            f"{' and '.join(str(p.relative_to(root)) for p in example.values())}; "
            "put all of them into PATH, into PATH/label or into PATH/client/label"
        )
