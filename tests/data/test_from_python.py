"""Data sets from arrays and torch datasets."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from tests.data.files import COLOUR, GREY, Y
from vitrail.data import from_arrays, from_torch
from vitrail.utils.errors import Malformed, VitrailError


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
