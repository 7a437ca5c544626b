"""CIFAR-10."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.data.files import REAL, need, put, zipped
from vitrail.data import load
from vitrail.utils.errors import Malformed, VitrailError


def cifar_bytes(n: int, seed: int = 0) -> bytes:
    records = np.random.default_rng(seed).integers(0, 256, (n, 3073), np.uint8)
    records[:, 0] = np.arange(n) % 10
    return records.tobytes()


def test_half_a_real_cifar_batch_is_refused_by_name(assets: Path) -> None:
    need("cifar10/data_batch_1.bin")
    content = Path(str(REAL), "cifar10", "data_batch_1.bin").read_bytes()
    put(assets / "cifar10" / "data_batch_1.bin", content[: len(content) // 2])  # 5,000 complete records
    with pytest.raises(Malformed, match=r"data_batch_1\.bin: 15,365,000 bytes, expected 10,000 images"):
        load("cifar10:1")


def test_real_cifar_batch_is_balanced_as_published(tmp_path: Path) -> None:
    need("cifar10/data_batch_1.bin", "cifar10/test_batch.bin")
    data = load("cifar10:1", home=tmp_path)
    assert data.train.pixels.shape == (10000, 3, 32, 32)
    assert data.test.labels is not None
    assert np.bincount(data.test.labels).tolist() == [1000] * 10
    assert data.classes[data.test.labels[0]] == "cat"  # the first test image is a well-known cat


@pytest.fixture
def batches_of_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten images instead of 10,000 per batch, to save time."""
    monkeypatch.setattr("vitrail.data.sources.cifar.IMAGES", 10)


@pytest.mark.usefixtures("batches_of_ten")
def test_cifar_reads_only_the_requested_batches(assets: Path) -> None:
    for i in (1, 3):
        put(assets / "cifar10" / f"data_batch_{i}.bin", cifar_bytes(10, i))
    put(assets / "cifar10" / "test_batch.bin", cifar_bytes(10, 9))
    data = load("cifar10:1+3")
    expected = np.frombuffer(cifar_bytes(10, 3), np.uint8).reshape(10, 3073)
    assert len(data.train) == 20
    assert np.array_equal(data.train.pixels[10:].reshape(10, -1), expected[:, 1:])


@pytest.mark.usefixtures("batches_of_ten")
def test_cifar_with_missing_batches_is_refused(assets: Path) -> None:
    put(assets / "cifar10" / "data_batch_1.bin", cifar_bytes(10))
    put(assets / "cifar10" / "test_batch.bin", cifar_bytes(10))
    with pytest.raises(VitrailError, match=r"data_batch_2\.bin is missing") as error:
        load("cifar10")
    assert "cifar10:1" in str(error.value)


@pytest.mark.usefixtures("batches_of_ten")
def test_cifar_is_unpacked_and_the_paths_in_its_archive_are_ignored(assets: Path, tmp_path: Path) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name in ["../../escape.bin", *[f"x/data_batch_{i}.bin" for i in range(1, 6)], "x/test_batch.bin"]:
            info = tarfile.TarInfo(name)
            info.size = 3073 * 10
            tar.addfile(info, io.BytesIO(cifar_bytes(10)))
    put(assets / "cifar10" / "cifar-10-binary.tar.gz", archive.getvalue())
    assert len(load("cifar10").train) == 50
    assert [p.relative_to(tmp_path / "home").parts[:2] for p in tmp_path.rglob("escape.bin")] == [
        ("downloads", "cifar10")
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (cifar_bytes(10)[:-1], "30,729 bytes, expected 10 images of 3,073"),
        (cifar_bytes(5), "15,365 bytes"),  # half a file, but an integer number of records
        (b"", "0 bytes"),
        (b"\x0a" + cifar_bytes(10)[1:], "label 10, expected 0 to 9"),
    ],
)
@pytest.mark.usefixtures("batches_of_ten")
def test_a_bad_cifar_batch_is_refused_by_name(assets: Path, content: bytes, reason: str) -> None:
    put(assets / "cifar10" / "data_batch_1.bin", content)
    put(assets / "cifar10" / "test_batch.bin", cifar_bytes(10))
    with pytest.raises(Malformed, match=reason) as error:
        load("cifar10:1")
    assert "data_batch_1.bin" in str(error.value)


def test_a_truncated_archive_is_refused_by_name(assets: Path) -> None:
    put(assets / "cifar10" / "cifar-10-binary.tar.gz", zipped(bytes(5000))[:20])
    with pytest.raises(Malformed, match=r"cifar-10-binary\.tar\.gz"):
        load("cifar10")
