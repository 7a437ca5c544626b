"""CelebA: aligned faces with 40 attributes, an official split and, if the file is present, identities."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from vitrail.data.dataset import Dataset, Images
from vitrail.data.decode import decode
from vitrail.data.progress import show_progress
from vitrail.data.read_request import ReadRequest
from vitrail.utils.atomic import replace_atomically
from vitrail.utils.errors import Malformed, VitrailError

T = TypeVar("T")
_TRAIN, _TEST = "0", "2"  # 1 is the validation part, which is not used


def read(request: ReadRequest) -> Dataset:
    """Read the training and test parts of CelebA; they are decoded once and then memory-mapped from a cache file."""
    archive, attributes, partition = (
        request.file(name) for name in ("img_align_celeba.zip", "list_attr_celeba.txt", "list_eval_partition.txt")
    )
    names, table = _attributes(attributes)
    parts = _values(partition, ("0", "1", "2").__contains__, "0, 1 or 2")
    order = [name for part in (_TRAIN, _TEST) for name, p in parts.items() if p == part]
    cut = sum(p == _TRAIN for p in parts.values())
    if not 0 < cut < len(order):
        raise Malformed(f"{partition}: has no image for training (0) or none for test (2)")
    has = np.array(_in_order(order, table, f"{attributes}: no line for"), np.bool_)
    pixels = _decoded(archive, order, request)
    identities = None
    if path := request.optional("identity_CelebA.txt"):
        people = _values(path, str.isdigit, "an identity number")
        identities = np.array(_in_order(order, people, f"{path}: no line for"), np.int64)
    # Slices of the memory map: lists of positions would read all images into memory.
    images = Images(pixels, attributes=has, identities=identities)
    return request.dataset(images.take(slice(cut)), images.take(slice(cut, None)), attributes=names)


def _attributes(path: Path) -> tuple[tuple[str, ...], dict[str, list[bool]]]:
    """Read the names of the attributes and the attributes of each image."""
    lines = _lines(path)
    if len(lines) < 2 or not lines[0].strip().isdigit() or int(lines[0]) != len(lines) - 2:
        raise Malformed(
            f"{path}: the first line must be the number of images, {max(len(lines) - 2, 0):,}, found {lines[:1]}"
        )
    names = tuple(lines[1].split())
    table: dict[str, list[bool]] = {}
    for number, line in enumerate(lines[2:], 3):
        name, *values = line.split()
        if len(values) != len(names) or not set(values) <= {"1", "-1"}:
            raise Malformed(f"{path}: line {number} must have a name and {len(names)} values of 1 or -1")
        table[name] = [v == "1" for v in values]
    return names, table


def _values(path: Path, valid: Callable[[str], object], expected: str) -> dict[str, str]:
    """Read one value per image."""
    found: dict[str, str] = {}
    for number, line in enumerate(_lines(path), 1):
        words = line.split()
        if len(words) != 2 or not valid(words[1]):
            raise Malformed(f"{path}: line {number} must have a name and {expected}")
        found[words[0]] = words[1]
    return found


def _in_order(order: list[str], table: Mapping[str, T], problem: str) -> list[T]:
    """Return the entries of the images in this order; raise Malformed if one is missing."""
    unknown = next((name for name in order if name not in table), None)
    if unknown is not None:
        raise Malformed(f"{problem} {unknown}, which is in list_eval_partition.txt")
    return [table[name] for name in order]


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text("ascii").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise Malformed(f"{path}: not a text file ({error})") from error


def _decoded(archive: Path, order: list[str], request: ReadRequest) -> NDArray[np.uint8]:
    """Return the images in this order as a memory map of a cache file, which is created if missing."""
    try:
        with zipfile.ZipFile(archive) as packed:
            members = {m.filename.rpartition("/")[2]: m for m in packed.infolist() if not m.is_dir()}
            images = _in_order(order, members, f"{archive}: does not contain the image")
            # The name depends on the content: another archive or size has another cache file.
            content = repr([(name, m.CRC, m.file_size) for name, m in zip(order, images, strict=True)])
            key = hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
            cache = request.home / "cache" / f"celeba-{request.size}-{key}.npy"
            if not cache.is_file():
                _decode_into(cache, packed, images, request)
    except VitrailError:
        raise
    except Exception as error:  # zipfile raises many types of exceptions
        raise Malformed(f"{archive}: not a complete zip file ({error})") from error
    return np.load(cache, mmap_mode="r", allow_pickle=False)


def _decode_into(cache: Path, packed: zipfile.ZipFile, members: list[zipfile.ZipInfo], request: ReadRequest) -> None:
    shape = (len(members), 3, request.size, request.size)
    cache.parent.mkdir(parents=True, exist_ok=True)
    # Written, not memory-mapped: on a full disk a write raises an error, a memory map crashes.
    with replace_atomically(cache) as part, part.open("wb") as out, show_progress(request.progress) as show:
        np.lib.format.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for i, member in enumerate(members):
            file = io.BytesIO(packed.read(member))
            # 178x218: `fit` crops to the central 178x178, as is usual for this data set.
            out.write(decode(file, False, request.size, f"{packed.filename}, {member.filename}").tobytes())
            show("decoding CelebA", i + 1, len(members))
