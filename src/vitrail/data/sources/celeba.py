"""CelebA: aligned faces with 40 attributes, an official split and, if the file is present, identities."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrail.data.dataset import Dataset, Images
from vitrail.data.decode import decode
from vitrail.data.progress import show_progress
from vitrail.data.read_request import ReadRequest
from vitrail.utils.atomic import replace_atomically
from vitrail.utils.errors import Malformed, VitrailError

_TRAIN, _TEST = "0", "2"  # 1 is the validation part, which is not used


def read(request: ReadRequest) -> Dataset:
    """Read the training and test parts of CelebA; they are decoded once and then memory-mapped from a cache file."""
    archive, attributes, partition = (
        request.file(name) for name in ("img_align_celeba.zip", "list_attr_celeba.txt", "list_eval_partition.txt")
    )
    names, table = _attributes(attributes)
    parts = _partition(partition)
    order = [name for part in (_TRAIN, _TEST) for name, p in parts.items() if p == part]
    cut = sum(p == _TRAIN for p in parts.values())
    if not 0 < cut < len(order):
        raise Malformed(f"{partition}: has no image for training (0) or none for test (2)")
    unknown = next((name for name in order if name not in table), None)
    if unknown is not None:
        raise Malformed(f"{attributes}: no line for {unknown}, which is in {partition.name}")
    has = np.array([table[name] for name in order], np.bool_)
    pixels = _decoded(archive, order, request)
    identity_file = request.optional("identity_CelebA.txt")
    identities = None if identity_file is None else _identities(identity_file, order)
    # Slices of the memory map: lists of positions would read all images into memory.
    train, test = (
        Images(pixels[part], attributes=has[part], identities=None if identities is None else identities[part])
        for part in (slice(cut), slice(cut, None))
    )
    return request.dataset(train, test, attributes=names)


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


def _partition(path: Path) -> dict[str, str]:
    parts: dict[str, str] = {}
    for number, line in enumerate(_lines(path), 1):
        words = line.split()
        if len(words) != 2 or words[1] not in ("0", "1", "2"):
            raise Malformed(f"{path}: line {number} must have a name and 0, 1 or 2")
        parts[words[0]] = words[1]
    return parts


def _identities(path: Path, order: list[str]) -> NDArray[np.int64]:
    """Read the number of the person in each image."""
    found: dict[str, int] = {}
    for number, line in enumerate(_lines(path), 1):
        words = line.split()
        if len(words) != 2 or not words[1].isdigit():
            raise Malformed(f"{path}: line {number} must have a name and an identity number")
        found[words[0]] = int(words[1])
    unknown = next((name for name in order if name not in found), None)
    if unknown is not None:
        raise Malformed(f"{path}: no line for {unknown}")
    return np.array([found[name] for name in order], np.int64)


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
            absent = next((name for name in order if name not in members), None)
            if absent is not None:
                raise Malformed(f"{archive}: does not contain the image {absent}")
            # The name depends on the content: another archive or size has another cache file.
            content = repr([(name, members[name].CRC, members[name].file_size) for name in order])
            key = hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
            cache = request.home / "cache" / f"celeba-{request.size}-{key}.npy"
            if not cache.is_file():
                _decode_into(cache, packed, [members[name] for name in order], request)
    except VitrailError:
        raise
    except Exception as error:  # zipfile raises many types of exceptions
        raise Malformed(f"{archive}: not a complete zip file ({error})") from error
    pixels: NDArray[np.uint8] = np.load(cache, mmap_mode="r", allow_pickle=False)
    return pixels


def _decode_into(cache: Path, packed: zipfile.ZipFile, members: list[zipfile.ZipInfo], request: ReadRequest) -> None:
    shape = (len(members), 3, request.size, request.size)
    cache.parent.mkdir(parents=True, exist_ok=True)
    # Written, not memory-mapped: on a full disk a write raises an error, a memory map crashes.
    with replace_atomically(cache) as part, part.open("wb") as out, show_progress(request.progress) as show:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(out, header)
        for i, member in enumerate(members):
            file = io.BytesIO(packed.read(member))
            # 178x218: `fit` crops to the central 178x178, as is usual for this data set.
            out.write(decode(file, False, request.size, f"{packed.filename}, {member.filename}").tobytes())
            show("decoding CelebA", i + 1, len(members))
