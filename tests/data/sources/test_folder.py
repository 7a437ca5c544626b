"""Images in folders."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.files import save
from vitrail.data import load
from vitrail.utils.errors import Malformed, VitrailError


def test_images_in_one_folder_have_no_labels(tmp_path: Path) -> None:
    for i in range(10):
        save(tmp_path / f"{i}.png")
    data = load(f"folder:{tmp_path}")
    assert (len(data.train) + len(data.test), data.shape) == (10, (3, 32, 32))
    assert data.train.labels is None
    assert data.classes == data.groups == ()


def test_one_level_of_folders_is_both_label_and_group(tmp_path: Path) -> None:
    for name in ("dog", "cat"):
        for i in range(5):
            save(tmp_path / name / f"{i}.png", value=10 if name == "cat" else 200)
    data = load(f"folder:{tmp_path}", size=8, test_fraction=0)
    assert data.classes == data.groups == ("cat", "dog")
    assert data.train.labels is not None
    assert (data.train.pixels[:, 0, 0, 0] == np.where(data.train.labels == 0, 10, 200)).all()
    assert np.bincount(data.train.labels).tolist() == [5, 5]


def test_two_levels_of_folders_are_client_then_label(tmp_path: Path) -> None:
    for client, label in (("b", "x"), ("b", "y"), ("a", "y")):
        for i in range(5):
            save(tmp_path / client / label / f"{i}.png", "L")
    data = load(f"folder:{tmp_path}", test_fraction=0)
    assert (data.groups, data.classes, data.shape[0]) == (("a", "b"), ("x", "y"), 1)
    assert data.train.groups is not None
    assert data.train.groups.tolist() == [0] * 5 + [1] * 10
    assert data.train.labels is not None
    assert data.train.labels.tolist() == [1] * 5 + [0] * 5 + [1] * 5


def test_train_and_test_folders_are_the_split_when_both_exist(tmp_path: Path) -> None:
    save(tmp_path / "train" / "a" / "1.png")
    save(tmp_path / "train" / "b" / "1.png")
    save(tmp_path / "test" / "b" / "1.png")
    data = load(f"folder:{tmp_path}")
    assert (len(data.train), len(data.test), data.classes) == (2, 1, ("a", "b"))
    assert data.test.labels is not None
    assert data.test.labels.tolist() == [1]


def test_a_train_folder_alone_is_a_label(tmp_path: Path) -> None:
    save(tmp_path / "train" / "1.png")
    save(tmp_path / "plane" / "1.png")
    assert load(f"folder:{tmp_path}").classes == ("plane", "train")


def test_one_colour_image_makes_all_images_colour(tmp_path: Path) -> None:
    for i in range(5):
        save(tmp_path / f"{i}.png", "L", value=7)
    assert load(f"folder:{tmp_path}").shape == (1, 32, 32)
    save(tmp_path / "9.png", "RGBA")
    data = load(f"folder:{tmp_path}", test_fraction=0)
    assert data.shape == (3, 32, 32)
    assert (data.train.pixels[0] == 7).all()


@pytest.mark.parametrize("most", [4095, 65535])
def test_grey_images_of_sixteen_bits_are_refused_with_their_name_and_the_remedy(most: int, tmp_path: Path) -> None:
    save(tmp_path / "1.png", "L", value=7)
    save(tmp_path / "2.png", "I;16", value=most)
    with pytest.raises(VitrailError, match=rf"2\.png: grey values of 16 bits \(from {most} to {most}\).*rescale"):
        load(f"folder:{tmp_path}", test_fraction=0)


def test_palettes_single_bits_and_alpha_become_plain_pixels(tmp_path: Path) -> None:
    save(tmp_path / "1.png", "1", value=255)
    save(tmp_path / "2.gif", "P", value=51)
    clear = Image.new("RGBA", (20, 20), (200, 100, 50, 0))
    clear.save(tmp_path / "3.png")
    data = load(f"folder:{tmp_path}", test_fraction=0)
    assert data.train.pixels[:, :, 9, 9].tolist() == [[255] * 3, [51] * 3, [200, 100, 50]]


def test_an_image_is_rotated_upright_and_cropped_to_its_centre(tmp_path: Path) -> None:
    image = Image.new("RGB", (90, 30), "black")
    image.paste((255, 255, 255), (30, 0, 60, 30))
    turned = image.rotate(90, expand=True)
    exif = turned.getexif()
    exif[0x0112] = 6  # rotate by 90 degrees clockwise for display
    turned.save(tmp_path / "1.png", exif=exif)
    data = load(f"folder:{tmp_path}", test_fraction=0)
    assert (data.train.pixels == 255).all()


def test_hidden_files_other_files_and_link_loops_are_skipped(tmp_path: Path) -> None:
    save(tmp_path / "a" / "1.png")
    save(tmp_path / "a" / ".2.png")
    save(tmp_path / ".cache" / "3.png")
    (tmp_path / "a" / "notes.txt").write_text("no image")
    (tmp_path / "a" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert len(load(f"folder:{tmp_path}", test_fraction=0).train) == 1


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n" + bytes(20)])
def test_a_file_that_cannot_be_decoded_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    save(tmp_path / "1.png")
    (tmp_path / "broken.png").write_bytes(content)
    with pytest.raises(Malformed, match=r"broken\.png"):
        load(f"folder:{tmp_path}")


def test_other_image_formats_are_refused_under_any_file_name(tmp_path: Path) -> None:
    save(tmp_path / "1.pcx").rename(tmp_path / "1.png")  # PIL reads it, and others that run external programs
    with pytest.raises(Malformed, match=r"1\.png: not an image"):
        load(f"folder:{tmp_path}")


def test_a_truncated_image_is_refused_by_name(tmp_path: Path) -> None:
    path = save(tmp_path / "half.png")
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(Malformed, match=r"half\.png"):
        load(f"folder:{tmp_path}")


@pytest.mark.parametrize("side", [10_000, 50_000])  # PIL only warns of the first
def test_an_image_that_would_fill_the_memory_is_refused(tmp_path: Path, side: int) -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">2I5B", side, side, 8, 0, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100)))
    (tmp_path / "bomb.png").write_bytes(content)
    with pytest.raises(Malformed, match=r"bomb\.png: refused, too many pixels"):
        load(f"folder:{tmp_path}")


def test_a_folder_without_images_or_of_unequal_depth_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="no folder"):
        load(f"folder:{tmp_path}/none")
    with pytest.raises(VitrailError, match="no images"):
        load(f"folder:{tmp_path}")
    save(tmp_path / "1.png")
    save(tmp_path / "a" / "2.png")
    with pytest.raises(VitrailError, match=r"1\.png and a/2\.png"):
        load(f"folder:{tmp_path}")


def test_held_out_images_are_the_same_in_every_run_and_not_in_train(tmp_path: Path) -> None:
    for i in range(20):
        save(tmp_path / str(i % 3) / f"{i}.png")
    one, two = (load(f"folder:{tmp_path}", test_fraction=0.3) for _ in range(2))
    assert one.test.digest() == two.test.digest()
    assert (len(one.train) + len(one.test), one.split) == (20, "content")
    assert not {p.tobytes() for p in one.train.pixels} & {p.tobytes() for p in one.test.pixels}
