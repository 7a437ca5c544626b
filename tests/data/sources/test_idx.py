"""MNIST and Fashion-MNIST."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.data.files import REAL, need, put, zipped
from vitrail.data import load
from vitrail.data.official import FILES
from vitrail.utils.errors import Malformed


def idx(array: np.ndarray) -> bytes:
    head = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
    return zipped(head + array.tobytes())


def make_mnist(folder: Path, n: int = 4) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (n, 28, 28), np.uint8)
    labels = (np.arange(n) % 10).astype(np.uint8)
    for part in ("train", "t10k"):
        put(folder / f"{part}-images-idx3-ubyte.gz", idx(images))
        put(folder / f"{part}-labels-idx1-ubyte.gz", idx(labels))
    return {"images": images, "labels": labels}


@pytest.mark.parametrize("source", ["mnist", "fashion-mnist"])
def test_real_idx_files_have_their_known_counts(source: str, tmp_path: Path) -> None:
    need(f"{source}/train-images-idx3-ubyte.gz", f"{source}/t10k-labels-idx1-ubyte.gz")
    data = load(source, home=tmp_path)
    assert data.train.pixels.shape == (60000, 1, 32, 32)
    assert data.test.pixels.shape == (10000, 1, 32, 32)
    assert data.test.labels is not None
    assert np.bincount(data.test.labels).sum() == 10000
    assert len(data.classes) == 10
    assert not data.train.pixels[:, :, :2].any()  # padded, not interpolated


def test_real_mnist_starts_with_a_five_and_contains_the_embedded_digits(tmp_path: Path) -> None:
    need("mnist/train-images-idx3-ubyte.gz")
    data, small = load("mnist", home=tmp_path), load("mnist5k")
    assert data.train.labels is not None
    assert data.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    everything = {p.tobytes() for p in data.train.pixels} | {p.tobytes() for p in data.test.pixels}
    assert sum(p.tobytes() in everything for p in small.train.pixels) == len(small.train)


def test_real_mnist_files_have_the_checksums_of_the_downloads() -> None:
    need(*(f"mnist/{name}" for name in FILES["mnist"]))
    for name, remote in FILES["mnist"].items():
        assert hashlib.md5(Path(str(REAL), "mnist", name).read_bytes()).hexdigest() == remote.md5


def test_idx_files_are_read_byte_for_byte(assets: Path) -> None:
    made = make_mnist(assets / "mnist")
    data = load("mnist")
    assert np.array_equal(data.train.pixels[:, 0, 2:-2, 2:-2], made["images"])
    assert data.train.labels is not None
    assert data.train.labels.tolist() == made["labels"].tolist()


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("train-images-idx3-ubyte.gz", idx(np.zeros((4, 28, 28), np.uint8))[:-6], "not a complete gzip"),
        ("train-images-idx3-ubyte.gz", b"not a gzip file at all", "not a complete gzip"),
        ("train-images-idx3-ubyte.gz", zipped(b"abc"), "header is incomplete"),
        ("train-images-idx3-ubyte.gz", idx(np.zeros(4, np.uint8)), "header is incomplete"),
        (
            "train-images-idx3-ubyte.gz",
            idx(np.zeros((4, 2, 2, 7), np.uint8)),
            "magic number 2052, expected 2051",
        ),
        ("train-images-idx3-ubyte.gz", idx(np.zeros((4, 27, 28), np.uint8)), "27x28, expected 28x28"),
        ("train-images-idx3-ubyte.gz", idx(np.zeros((0, 28, 28), np.uint8)), "4 labels for 0"),
        ("train-labels-idx1-ubyte.gz", idx(np.zeros(3, np.uint8)), "3 labels for 4 images"),
        ("train-labels-idx1-ubyte.gz", idx(np.full(4, 10, np.uint8)), "label 10, expected 0 to 9"),
        (
            "t10k-images-idx3-ubyte.gz",
            zipped(struct.pack(">4I", 2051, 9, 28, 28)),
            "announces 7,056 bytes",
        ),
        ("t10k-images-idx3-ubyte.gz", zipped(struct.pack(">4I", 2051, *[2**32 - 1] * 3)), "announces"),
        ("t10k-labels-idx1-ubyte.gz", zipped(struct.pack(">2I", 2049, 4) + b"123456"), "found more"),
    ],
)
def test_a_bad_idx_file_is_refused_by_name(assets: Path, file: str, content: bytes, reason: str) -> None:
    make_mnist(assets / "mnist")
    put(assets / "mnist" / file, content)
    with pytest.raises(Malformed, match=reason) as error:
        load("mnist")
    assert file in str(error.value)
    assert "replace the file, or remove it" in str(error.value)


def test_a_flipped_bit_in_a_gzip_file_is_detected(assets: Path) -> None:
    make_mnist(assets / "mnist")
    path = assets / "mnist" / "train-images-idx3-ubyte.gz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(Malformed, match=path.name):
        load("mnist")
