"""Arrays of an .npz file, read in blocks of rows so that memory does not grow with what the file decompresses to.

NumPy's format is read here because `numpy.load` decompresses a whole array first: 600 kB can name 600 MB of zeros.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from vitrail.utils.errors import Malformed

BLOCK = 2**24  # bytes that are read at once, or one row where a row has more
ROW = 2**26  # the most bytes of one row: of one image
# The most bytes of an array that is read as a whole (labels, and images in Fortran order): this many, or this many for
# each byte that the array has in the file.
WHOLE, WHOLE_PER_BYTE = 2**26, 16
# The most bytes of the resized images: this many, or this many for each byte that the array has in the file.
RESULT, RESULT_PER_BYTE = 2**32, 256
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what NumPy writes; others may need gigabytes to decompress


@dataclass(frozen=True)
class StoredArray:
    """One array of an .npz file, of which only the header was read."""

    path: Path
    entry: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    compressed: int  # bytes in the file

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def placeholder(self) -> NDArray[Any]:
        """An array of this shape and type that takes no memory."""
        with _reading(self.path):
            return np.broadcast_to(np.zeros((), self.dtype), self.shape)

    def check_result(self, nbytes: int) -> None:
        """Refuse images whose resized pixels would take more memory than the file justifies."""
        most = max(RESULT, RESULT_PER_BYTE * self.compressed)
        if nbytes > most:
            raise Malformed(
                f"{self.path}: {self.entry} would take {nbytes:,} bytes of memory when resized; at most {most:,} are "
                "allowed for this file: set a smaller size, or split the file"
            )

    def whole(self) -> NDArray[Any]:
        """The whole array."""
        most = max(WHOLE, WHOLE_PER_BYTE * self.compressed)
        if self.nbytes > most:
            order = " in Fortran order" if self.fortran else ""
            raise Malformed(
                f"{self.path}: {self.entry} has {self.nbytes:,} bytes{order}; at most {most:,} are allowed for this "
                "file: save images with numpy.ascontiguousarray, and labels as integers"
            )
        with _reading(self.path), _opened(self.path, self.entry) as stream:
            _header(stream)
            values = _read(stream, math.prod(self.shape), self.dtype)
            stream.read(1)  # at the end, zipfile compares the checksum
            return values.reshape(self.shape[::-1]).T if self.fortran else values.reshape(self.shape)

    def blocks(self) -> Iterator[NDArray[Any]]:
        """The rows of the array, some at a time."""
        n, *row = self.shape
        nbytes = math.prod(row) * self.dtype.itemsize
        if nbytes > ROW:
            raise Malformed(
                f"{self.path}: {self.entry} has images of {nbytes:,} bytes each; at most {ROW:,} are read: make them "
                "smaller first"
            )
        step = max(1, BLOCK // nbytes)
        if self.fortran:
            whole = self.whole()
            yield from (whole[i : i + step] for i in range(0, n, step))
            return
        with _reading(self.path), _opened(self.path, self.entry) as stream:
            _header(stream)
            for i in range(0, n, step):
                rows = min(step, n - i)
                yield _read(stream, rows * math.prod(row), self.dtype).reshape(rows, *row)
            stream.read(1)  # at the end, zipfile compares the checksum


def stored_arrays(path: Path, names: Set[str]) -> dict[str, StoredArray]:
    """The arrays with these names in an .npz file; only their headers are read."""
    found = {}
    with _reading(path), zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name not in names:
                continue
            if info.compress_type not in METHODS:
                raise ValueError(f"{info.filename} is compressed by a method that NumPy does not write")
            with archive.open(info) as stream:
                shape, fortran, dtype = _header(stream)
            if dtype.hasobject:
                raise ValueError(f"{info.filename} has Python objects")
            array = StoredArray(path, info.filename, shape, dtype, fortran, info.compress_size)
            if array.nbytes > info.file_size:
                raise ValueError(f"{info.filename} has fewer bytes than its shape {shape} needs")
            found[name] = array
    return found


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Refuse a file that NumPy's or zipfile's readers cannot read; they raise many types of exceptions."""
    try:
        yield
    except Malformed:
        raise
    except Exception as error:
        raise Malformed(f"{path}: not a whole .npz file of plain arrays ({error})") from error


@contextmanager
def _opened(path: Path, entry: str) -> Iterator[IO[bytes]]:
    with zipfile.ZipFile(path) as archive, archive.open(entry) as stream:
        yield stream


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and type of the array that follows."""
    version = npy.read_magic(stream)
    if version == (1, 0):
        return npy.read_array_header_1_0(stream)
    if version == (2, 0):
        return npy.read_array_header_2_0(stream)
    raise ValueError(f"version {version} of NumPy's format")


def _read(stream: IO[bytes], count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The next values of a stream."""
    out = np.empty(count, dtype)
    view, done = out.view(np.uint8) if out.nbytes else np.empty(0, np.uint8), 0
    while done < len(view):
        part = stream.read(min(2**20, len(view) - done))
        if not part:
            raise EOFError("it ends too early")
        view[done : done + len(part)] = np.frombuffer(part, np.uint8)
        done += len(part)
    return out
