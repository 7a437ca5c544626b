"""Data sets of the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.files import COLOUR, GREY, Y, assert_split_by_content, save
from vitrail.data import load
from vitrail.utils.errors import Malformed, VitrailError


def hub_folder(tmp_path: Path, splits: dict[str, int], labels: bool = True) -> Path:
    import datasets

    kinds = datasets.ClassLabel(names=["cat", "dog", "emu"])
    for split, n in splits.items():
        columns = {"scan": [Image.fromarray(COLOUR[i]) for i in range(n)], "note": ["x"] * n}
        features = {"scan": datasets.Image(), "note": datasets.Value("string")}
        if labels:
            columns["kind"], features["kind"] = Y[:n].tolist(), kinds
        table = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
        (tmp_path / "hub").mkdir(exist_ok=True)
        table.to_parquet(tmp_path / "hub" / f"{split}-00000-of-00001.parquet")
    return tmp_path / "hub"


def test_columns_and_splits_of_a_hub_dataset_are_detected(tmp_path: Path) -> None:
    folder = hub_folder(tmp_path, {"train": 6, "test": 2})
    data = load(f"hf:{folder}", home=tmp_path / "home")
    assert np.array_equal(data.train.pixels, COLOUR.transpose(0, 3, 1, 2))
    assert data.classes == ("cat", "dog", "emu")
    assert data.test.labels is not None
    assert data.test.labels.tolist() == [0, 1]


def test_a_hub_dataset_without_labels_and_test_split_is_split(tmp_path: Path) -> None:
    folder = hub_folder(tmp_path, {"train": 6}, labels=False)
    data = load(f"hf:{folder}", home=tmp_path / "home", test_fraction=0.5)
    assert (len(data.train) + len(data.test), data.train.labels) == (6, None)
    assert_split_by_content(data)


def test_a_hub_folder_of_images_is_labelled_by_its_sub_folders(tmp_path: Path) -> None:
    for split, n in (("train", 4), ("test", 2)):
        for label in ("cat", "dog"):
            for i in range(n):
                save(tmp_path / "hub" / split / label / f"{i}.png", "L", value=9)
    data = load(f"hf:{tmp_path / 'hub'}", home=tmp_path / "home")
    assert (len(data.train), len(data.test), data.shape) == (8, 4, (1, 32, 32))
    assert data.classes == ("cat", "dog")
    assert (data.train.pixels == 9).all()


@pytest.mark.parametrize(
    ("column", "last", "reason"),
    [
        ("kind", None, "some images have no label"),
        ("kind", -1, "some images have no label"),
        ("scan", None, "train 2: no image"),
        ("scan", {"bytes": b"junk", "path": None}, "train 2: not an image"),
    ],
)
def test_a_hub_dataset_with_a_missing_value_is_refused_by_name(
    tmp_path: Path, column: str, last: object, reason: str
) -> None:
    import datasets

    columns = {"scan": [Image.fromarray(p) for p in GREY[:3]], "kind": [0, 1, 0]}
    columns[column][2] = last  # type: ignore[call-overload]
    features = datasets.Features({"scan": datasets.Image(), "kind": datasets.ClassLabel(names=["a", "b"])})
    (tmp_path / "hub").mkdir()
    datasets.Dataset.from_dict(columns, features=features).to_parquet(tmp_path / "hub" / "train.parquet")
    with pytest.raises(Malformed, match=reason) as error:
        load(f"hf:{tmp_path / 'hub'}", home=tmp_path / "home")
    assert f"hf:{tmp_path / 'hub'}" in str(error.value)


def test_a_truncated_hub_dataset_is_refused_by_name(tmp_path: Path) -> None:
    folder = hub_folder(tmp_path, {"train": 6})
    path = next(folder.iterdir())
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(Malformed, match=f"hf:{folder}: cannot be loaded"):
        load(f"hf:{folder}", home=tmp_path / "home")


def test_a_hub_dataset_that_cannot_be_loaded_is_refused_with_remedies(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(VitrailError, match=r"cannot be loaded.*connect to the internet"):
        load(f"hf:{tmp_path / 'empty'}", home=tmp_path)
