"""Image files in one folder, in one folder per label, or in one folder per client and label."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrail.data.dataset import Dataset, Images
from vitrail.data.decode import ENDINGS, decode, is_grey, open_image
from vitrail.data.progress import show_progress
from vitrail.data.read_request import ReadRequest
from vitrail.utils.errors import VitrailError


@dataclass(frozen=True)
class Tree:
    """The image files under a folder.

    Args:
        files: The files, sorted by path.
        levels: For each file, the names of the sub-folders (at most two) that contain it.
    """

    files: list[Path]
    levels: list[tuple[str, ...]]


def read(request: ReadRequest) -> Dataset:
    """Read the images under a folder, or under its folders train and test if it has both."""
    root = Path(request.source.argument).expanduser()
    if not root.is_dir():
        raise VitrailError(f"data={request.source}: there is no folder {root}; give the path of a folder of images")
    both = (root / "train").is_dir() and (root / "test").is_dir()
    trees = [_tree(root / "train"), _tree(root / "test")] if both else [_tree(root)]
    depth = _depth(root, trees)
    classes = _names(trees, -1) if depth else ()
    groups = _names(trees, 0) if depth else ()
    grey = all(_grey(path) for tree in trees for path in tree.files)
    parts = []
    for tree in trees:
        labels, group = (_numbers(tree, i, names) for i, names in ((-1, classes), (0, groups)))
        parts.append(Images(_pixels(tree.files, grey, request), labels, groups=group))
    return request.dataset(parts[0], parts[1] if both else None, classes, groups=groups)


def image_files(root: Path) -> list[Path]:
    """List the image files under a folder, sorted by path; none is opened."""
    return _tree(root).files


def _tree(root: Path) -> Tree:
    """List the image files; hidden and other files are skipped."""
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
    files = sorted(f for f in files if f.is_file())
    return Tree(files, [f.relative_to(root).parts[:-1] for f in files])


def _depth(root: Path, trees: list[Tree]) -> int:
    """Return the number of levels of sub-folders, which must be the same for all images."""
    example: dict[int, Path] = {}
    for tree in trees:
        if not tree.files:
            raise VitrailError(f"data=folder:{root}: no images found; give a folder with files such as .png or .jpg")
        for path, level in zip(tree.files, tree.levels, strict=True):
            example.setdefault(len(level), path)
    if len(example) > 1 or max(example) > 2:
        raise VitrailError(
            f"data=folder:{root}: images are at different or too many levels of sub-folders, such as "
            f"{' and '.join(str(p.relative_to(root)) for p in example.values())}; "
            "put all of them into PATH, into PATH/label or into PATH/client/label"
        )
    return max(example)


def _names(trees: list[Tree], level: int) -> tuple[str, ...]:
    return tuple(sorted({names[level] for tree in trees for names in tree.levels}))


def _numbers(tree: Tree, level: int, names: tuple[str, ...]) -> NDArray[np.int64] | None:
    if not names:
        return None
    number = {name: i for i, name in enumerate(names)}
    return np.array([number[names[level]] for names in tree.levels], np.int64)


def _grey(path: Path) -> bool:
    with open_image(str(path), str(path)) as image:  # reads only the header
        return is_grey(image)


def _pixels(files: list[Path], grey: bool, request: ReadRequest) -> NDArray[np.uint8]:
    out = np.empty((len(files), 1 if grey else 3, request.size, request.size), np.uint8)
    with show_progress(request.progress) as show:
        for i, path in enumerate(files):
            out[i] = decode(str(path), grey, request.size, str(path))
            show("decoding images", i + 1, len(files))
    return out
