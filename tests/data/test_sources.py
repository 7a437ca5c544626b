"""Images of the user: folders, arrays, torch and Hugging Face data sets."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data import from_arrays, from_torch, load
from vitrail.data.dataset import Dataset, Images
from vitrail.data.holdout import hold_out
from vitrail.utils.errors import Malformed, VitrailError

RNG = np.random.default_rng(0)


def save(path: Path, mode: str = "RGB", side: tuple[int, int] = (40, 40), value: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if mode == "I;16":
        pixels = RNG.integers(0, 65536, side, np.uint16) if value is None else np.full(side, value, np.uint16)
        Image.fromarray(pixels).save(path)
        return path
    pixels = RNG.integers(0, 256, (*side, 3), np.uint8) if value is None else np.full((*side, 3), value, np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


def assert_split_by_content(data: Dataset) -> None:
    """Assert that half of the images were held out by a hash of their content."""
    train, test = hold_out(Images(np.concatenate([data.test.pixels, data.train.pixels])), 0.5)
    assert np.array_equal(train.pixels, data.train.pixels)
    assert np.array_equal(test.pixels, data.test.pixels)


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


def test_images_of_sixteen_bits_are_scaled_to_eight(tmp_path: Path) -> None:
    for name, value in (("a", 0), ("b", 257 * 100), ("c", 65535)):
        save(tmp_path / f"{name}.png", "I;16", value=value)
    data = load(f"folder:{tmp_path}", test_fraction=0)
    assert data.train.pixels[:, 0, 5, 5].tolist() == [0, 100, 255]


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


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_an_invalid_test_fraction_is_refused(share: float) -> None:
    with pytest.raises(VitrailError, match="test_fraction="):
        load("digits", test_fraction=share)


def test_a_fraction_that_leaves_no_training_images_is_refused() -> None:
    with pytest.raises(VitrailError, match="leaves none of 1"):
        from_arrays(np.zeros((1, 8, 8), np.uint8), test_fraction=0.9)


@pytest.mark.parametrize("size", [0, -3, 10**6])
def test_an_invalid_size_is_refused(size: int) -> None:
    with pytest.raises(VitrailError, match=f"size={size}"):
        load("digits", size=size)
    with pytest.raises(VitrailError, match=f"size={size}"):
        from_arrays(GREY, size=size)


# Arrays.

GREY = RNG.integers(0, 256, (6, 32, 32), np.uint8)
COLOUR = RNG.integers(0, 256, (6, 32, 32, 3), np.uint8)
Y = np.array([0, 1, 2, 0, 1, 2])


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


def test_arrays_of_bytes_floats_and_booleans_agree() -> None:
    black_white = np.where(GREY > 127, 255, 0).astype(np.uint8)
    digests = {
        from_arrays(a, Y).train.digest()
        for a in (black_white, black_white / 255, black_white > 0, black_white[..., None])
    }
    assert len(digests) == 1


def test_labels_are_numbered_by_their_sorted_values() -> None:
    data = from_arrays(GREY, ["pear", "fig", "fig", "pear", "apple", "fig"], GREY[:1], ["fig"])
    assert data.classes == ("apple", "fig", "pear")
    assert data.train.labels is not None
    assert data.train.labels.tolist() == [2, 1, 1, 2, 0, 1]
    assert data.test.labels is not None
    assert data.test.labels.tolist() == [1]


def test_all_kinds_of_torch_datasets_give_the_same_images() -> None:
    import torch
    from torch.utils.data import Dataset, TensorDataset

    class Pil(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(COLOUR)

        def __getitem__(self, i: int) -> tuple[Image.Image, int]:
            return Image.fromarray(COLOUR[i]), int(Y[i])

    planes = torch.from_numpy(COLOUR).permute(0, 3, 1, 2)
    given = [
        Pil(),
        TensorDataset(planes, torch.from_numpy(Y)),
        TensorDataset(planes / 255, torch.from_numpy(Y)),
    ]
    expected = from_arrays(COLOUR, Y).train.digest()
    assert [from_torch(d).train.digest() for d in given] == [expected] * 3
    more = from_torch([(Image.fromarray(p), y, "and more") for p, y in zip(COLOUR, Y, strict=True)])
    assert more.train.digest() == expected
    bare = from_torch([Image.fromarray(p) for p in GREY], test=[Image.fromarray(COLOUR[0])])
    assert (bare.shape, bare.train.labels, len(bare.test)) == ((3, 32, 32), None, 1)


def test_a_tensor_dataset_without_labels_has_no_labels() -> None:
    import torch
    from torch.utils.data import TensorDataset

    data = from_torch(TensorDataset(torch.from_numpy(GREY)[:, None]), test_fraction=0)
    assert data.train.labels is None
    assert np.array_equal(data.train.pixels[:, 0], GREY)


def test_an_invalid_torch_dataset_is_refused_with_the_reason() -> None:
    image = Image.fromarray(GREY[0])
    with pytest.raises(VitrailError, match="empty"):
        from_torch([])
    with pytest.raises(VitrailError, match="only 1 of 2 images have labels"):
        from_torch([(image, 1), image])
    with pytest.raises(Malformed, match=r"labels of shape \(2, 3\)"):
        from_torch([(image, np.zeros(3, int))] * 2)
    with pytest.raises(Malformed, match=r"image 0: float64 values from -1\.0"):
        from_torch([GREY[0] / 127.5 - 1])


# Hugging Face.


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
