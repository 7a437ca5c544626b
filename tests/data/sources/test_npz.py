"""Arrays in .npz files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.data.files import COLOUR, GREY, Y, assert_split_by_content
from vitrail.data import load
from vitrail.utils.errors import Malformed, VitrailError


@pytest.mark.parametrize(
    "names",
    [
        ("x_train", "y_train", "x_test", "y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
    ],
)
def test_npz_conventions_with_a_test_part_are_read(tmp_path: Path, names: tuple[str, ...]) -> None:
    arrays = dict(zip(names, (COLOUR, Y[:, None], COLOUR[:2].transpose(0, 3, 1, 2), Y[:2]), strict=True))
    np.savez(tmp_path / "a.npz", val_images=GREY, **arrays)
    data = load(f"npz:{tmp_path / 'a.npz'}")
    assert np.array_equal(data.train.pixels, COLOUR.transpose(0, 3, 1, 2))
    assert np.array_equal(data.test.pixels, data.train.pixels[:2])
    assert data.classes == ("0", "1", "2")


def test_npz_of_images_and_labels_is_split(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", images=GREY, labels=Y)
    data = load(f"npz:{tmp_path / 'a.npz'}", test_fraction=0.5)
    assert (len(data.train) + len(data.test), data.shape) == (6, (1, 32, 32))
    assert_split_by_content(data)


def test_classes_of_an_npz_name_the_labels_also_those_without_images(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=GREY, labels=np.full(6, 2), classes=np.array(["b", "a", "d", "c"]))
    data = load(f"npz:{tmp_path / 'a.npz'}")
    assert data.classes == ("b", "a", "d", "c")
    assert set(data.train.labels) | set(data.test.labels) == {2}


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"pixels": GREY}, "contains none of images"),
        ({"images": GREY, "labels": Y[:3]}, "3 labels for 6 images"),
        ({"images": GREY[0], "labels": Y}, "expected \\(n, h, w\\)"),
        ({"images": GREY[:0]}, "no pixels"),
        ({"images": GREY / 3.0}, "expected 0 to 1"),
        ({"images": np.full((2, 8, 8), np.nan)}, "expected 0 to 1"),
        ({"images": GREY.astype(int) + 300}, "expected 0 to 255"),
        ({"images": np.array([["a"]], object)}, "plain arrays"),
        ({"images": np.zeros((2, 9, 9, 9), np.uint8)}, "no axis of 1 to 4 channels"),
        ({"images": np.zeros((2, 3, 3, 3), np.uint8)}, "ambiguous"),
        ({"x_train": GREY, "x_test": COLOUR}, "only one of training and test images is in colour"),
        ({"x_train": GREY, "x_test": GREY, "y_test": Y}, "labels for only one of"),
        ({"images": GREY, "labels": np.full(6, 0.5)}, "integers or text"),
        ({"images": GREY, "labels": Y, "classes": np.array(["a", "b"])}, "classes has 2 names: expected 0 to 1"),
        ({"images": GREY, "labels": Y - 1, "classes": np.array(["a", "b", "c"])}, "labels from -1 to 1"),
        ({"images": GREY, "labels": Y, "classes": np.array([["a", "b", "c"]])}, "expected a list of texts"),
        ({"images": GREY, "labels": Y, "classes": np.arange(3)}, "expected a list of texts"),
        ({"images": GREY, "labels": Y, "classes": np.array(["a", "b", "a"])}, "the same name twice"),
        ({"images": GREY, "labels": Y.astype(str), "classes": np.array(["0", "1", "2"])}, "expected integers"),
        ({"images": GREY, "labels": Y, "classes": np.array(["a", "b", "c"], object)}, "plain arrays"),
    ],
)
def test_a_bad_npz_is_refused_by_name(tmp_path: Path, arrays: dict[str, np.ndarray], reason: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(Malformed, match=reason) as error:
        load(f"npz:{tmp_path / 'a.npz'}")
    assert "a.npz" in str(error.value)


@pytest.mark.parametrize("damage", ["cut", "flip", "text"])
def test_a_damaged_npz_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, images=GREY, labels=Y)
    content = bytearray(path.read_bytes())
    content[1000] ^= 0xFF
    path.write_bytes({"cut": content[:900], "flip": content, "text": b"hello"}[damage])
    with pytest.raises(Malformed, match=r"a\.npz"):
        load(f"npz:{path}")


def test_a_missing_npz_is_refused_by_name() -> None:
    with pytest.raises(VitrailError, match=r"no file nowhere\.npz"):
        load("npz:nowhere.npz")
