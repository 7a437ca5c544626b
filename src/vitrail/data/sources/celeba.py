"""CelebA: aligned faces in a zip, with 40 attributes, an official split and, if its file is there, who is on them."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrail.data.dataset import Dataset, Images
from vitrail.data.decode import decode
from vitrail.data.download import into_place
from vitrail.data.progress import shown
from vitrail.data.read_request import ReadRequest
from vitrail.utils.errors import Malformed, VitrailError

_TRAIN, _TEST = "0", "2"  # 1 is the validation part, which stays unused


def read(request: ReadRequest) -> Dataset:
    """CelebA's train and test parts, decoded once and then mapped from a file, which spares the memory."""
    archive, attributes, partition = (
        request.file(name) for name in ("img_align_celeba.zip", "list_attr_celeba.txt", "list_eval_partition.txt")
    )
    names, table = _attributes(attributes)
    parts = _partition(partition)
    order = [name for part in (_TRAIN, _TEST) for name, p in parts.items() if p == part]
    cut = sum(p == _TRAIN for p in parts.values())
    if not 0 < cut < len(order):
        raise Malformed(f"{partition}: names no picture for train (0) or none for test (2)")
    unknown = next((name for name in order if name not in table), None)
    if unknown is not None:
        raise Malformed(f"{attributes}: no line for {unknown}, which {partition.name} lists")
    has = np.array([table[name] for name in order], np.bool_)
    pixels = _decoded(archive, order, request)
    people = request.optional("identity_CelebA.txt")
    who = None if people is None else _identities(people, order)
    # Slices of the map, and no lists of positions: these would read everything into memory.
    train, test = (
        Images(pixels[part], attributes=has[part], identities=None if who is None else who[part])
        for part in (slice(cut), slice(cut, None))
    )
    return request.answer(train, test, attributes=names)


def _attributes(path: Path) -> tuple[tuple[str, ...], dict[str, list[bool]]]:
    """The names of the attributes, and which of them each picture has."""
    lines = _lines(path)
    if len(lines) < 2 or not lines[0].strip().isdigit() or int(lines[0]) != len(lines) - 2:
        raise Malformed(f"{path}: the first line must count the {max(len(lines) - 2, 0):,} pictures, found {lines[:1]}")
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
    """The number of the person on each picture."""
    who: dict[str, int] = {}
    for number, line in enumerate(_lines(path), 1):
        words = line.split()
        if len(words) != 2 or not words[1].isdigit():
            raise Malformed(f"{path}: line {number} must have a name and the number of a person")
        who[words[0]] = int(words[1])
    unknown = next((name for name in order if name not in who), None)
    if unknown is not None:
        raise Malformed(f"{path}: no line for {unknown}")
    return np.array([who[name] for name in order], np.int64)


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text("ascii").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise Malformed(f"{path}: not a text file ({error})") from error


def _decoded(archive: Path, order: list[str], request: ReadRequest) -> NDArray[np.uint8]:
    """The pictures in this order, as a map of a file in the cache, which is made when it is not there."""
    try:
        with zipfile.ZipFile(archive) as packed:
            members = {m.filename.rpartition("/")[2]: m for m in packed.infolist() if not m.is_dir()}
            absent = next((name for name in order if name not in members), None)
            if absent is not None:
                raise Malformed(f"{archive}: holds no picture {absent}")
            # The name of the cache says what is in it, so that another archive or size never takes its place.
            content = repr([(name, members[name].CRC, members[name].file_size) for name in order])
            key = hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
            cache = request.home / "cache" / f"celeba-{request.size}-{key}.npy"
            if not cache.is_file():
                _decode_into(cache, packed, [members[name] for name in order], request)
    except VitrailError:
        raise
    except Exception as error:  # zipfile fails in many ways on bytes that are no zip
        raise Malformed(f"{archive}: not a whole zip file ({error})") from error
    pixels: NDArray[np.uint8] = np.load(cache, mmap_mode="r", allow_pickle=False)
    return pixels


def _decode_into(cache: Path, packed: zipfile.ZipFile, members: list[zipfile.ZipInfo], request: ReadRequest) -> None:
    shape = (len(members), 3, request.size, request.size)
    # Written and not mapped: on a full disk a write fails with an error, a map with a crash.
    with into_place(cache) as out, shown(request.progress) as show:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(out, header)
        for i, member in enumerate(members):
            file = io.BytesIO(packed.read(member))
            # 178x218: the fit takes the central 178x178, as is usual for this data set.
            out.write(decode(file, False, request.size, f"{packed.filename}, {member.filename}").tobytes())
            show("decoding CelebA", i + 1, len(members))
