"""Arrays of an .npz file, read in blocks of rows, so that the memory is bounded.

`numpy.load` is not used because it decompresses the complete array first: 600 kB can contain 600 MB of zeros.
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

BLOCK = 2**24  # bytes read at once, or one row if a row is larger
ROW = 2**26  # maximum bytes of one row, which is one image
# Maximum bytes of an array that is read completely (labels, and images in Fortran order): the larger of AT_ONCE and
# AT_ONCE_PER_BYTE times its bytes in the file.
AT_ONCE, AT_ONCE_PER_BYTE = 2**26, 16
# Maximum bytes of the resized images: the larger of RESULT and RESULT_PER_BYTE times the array's bytes in the file.
RESULT, RESULT_PER_BYTE = 2**32, 256
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # those that NumPy writes; others may need gigabytes to decompress


@dataclass(frozen=True)
class StoredArray:
    """An array in an .npz file, of which only the header was read."""

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
        """Return an array of this shape and type that uses no memory."""
        with _reading(self.path):
            return np.broadcast_to(np.zeros((), self.dtype), self.shape)

    def check_result(self, nbytes: int) -> None:
        """Raise Malformed if the resized images would need more memory than a file of this size may use."""
        most = max(RESULT, RESULT_PER_BYTE * self.compressed)
        if nbytes > most:
            raise Malformed(
                f"{self.path}: {self.entry} would need {nbytes:,} bytes of memory when resized; at most {most:,} are "
                "allowed for this file: set a smaller size, or split the file"
            )

    def read(self) -> NDArray[Any]:
        """Read the complete array."""
        most = max(AT_ONCE, AT_ONCE_PER_BYTE * self.compressed)
        if self.nbytes > most:
            order = " in Fortran order" if self.fortran else ""
            raise Malformed(
                f"{self.path}: {self.entry} has {self.nbytes:,} bytes{order}; at most {most:,} are allowed for this "
                "file: save images with numpy.ascontiguousarray, and labels as integers"
            )
        with self._open_values() as stream:
            values = _read(stream, math.prod(self.shape), self.dtype)
            return values.reshape(self.shape[::-1]).T if self.fortran else values.reshape(self.shape)

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yield the rows of the array in blocks."""
        n, *row = self.shape
        nbytes = math.prod(row) * self.dtype.itemsize
        if nbytes > ROW:
            raise Malformed(
                f"{self.path}: {self.entry} has images of {nbytes:,} bytes each; at most {ROW:,} are read: make them "
                "smaller first"
            )
        step = max(1, BLOCK // nbytes)
        if self.fortran:
            array = self.read()
            yield from (array[i : i + step] for i in range(0, n, step))
            return
        with self._open_values() as stream:
            for i in range(0, n, step):
                rows = min(step, n - i)
                yield _read(stream, rows * math.prod(row), self.dtype).reshape(rows, *row)

    @contextmanager
    def _open_values(self) -> Iterator[IO[bytes]]:
        """Open the array after its header."""
        with _reading(self.path), zipfile.ZipFile(self.path) as archive, archive.open(self.entry) as stream:
            _header(stream)
            yield stream
            stream.read(1)  # at the end, zipfile checks the checksum


def stored_arrays(path: Path, names: Set[str]) -> dict[str, StoredArray]:
    """Find arrays in an .npz file; only their headers are read.

    Args:
        path: The file.
        names: Names of the arrays to find.

    Returns:
        The arrays that the file contains, by name.

    Raises:
        Malformed: If the file is damaged, or an array has Python objects or an unusual compression.
    """
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
    """Turn the many exceptions of NumPy's and zipfile's readers into Malformed."""
    try:
        yield
    except Malformed:
        raise
    except Exception as error:
        raise Malformed(f"{path}: not a complete .npz file of plain arrays ({error})") from error


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the shape, the order (True: Fortran) and the type of the array that follows."""
    version = npy.read_magic(stream)
    if version == (1, 0):
        return npy.read_array_header_1_0(stream)
    if version == (2, 0):
        return npy.read_array_header_2_0(stream)
    raise ValueError(f"version {version} of NumPy's format")


def _read(stream: IO[bytes], count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Read the next values of a stream."""
    out = np.empty(count, dtype)
    view, done = out.view(np.uint8) if out.nbytes else np.empty(0, np.uint8), 0
    while done < len(view):
        part = stream.read(min(2**20, len(view) - done))
        if not part:
            raise EOFError("the file is truncated")
        view[done : done + len(part)] = np.frombuffer(part, np.uint8)
        done += len(part)
    return out
