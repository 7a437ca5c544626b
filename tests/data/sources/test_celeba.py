"""CelebA."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.files import put
from vitrail.data import load
from vitrail.utils.errors import Malformed


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
