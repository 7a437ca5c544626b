"""Images of a node: what is read, stored and described."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.experiment.deployment.nodes import SHARE, folder_of_images, images, node, unread
from vitrail.experiment.deployment.specs import spec_of
from vitrail.utils.errors import VitrailError


def test_a_part_of_a_partition_equals_that_of_the_simulated_client(plan, tmp_path):
    ours = node(tmp_path, **SHARE)
    described = ours.describe(spec_of(plan))
    assert (described.shape, described.classes) == (plan.data.shape, plan.data.classes)
    own_images = ours.client(spec_of(plan)).images()
    assert own_images.digest() == plan.partition.client(plan.data, 1).digest()
    again = ours.client(spec_of(plan)).images()  # from the stored copy
    assert again.digest() == own_images.digest()


def test_the_reason_why_images_cannot_be_read_stays_on_the_node(plan, tmp_path, capfd):
    ours = node(tmp_path, data=f"folder:{tmp_path / 'nowhere'}")
    with pytest.raises(VitrailError) as refused:
        ours.describe(spec_of(plan))
    assert str(tmp_path) not in str(refused.value)
    assert str(tmp_path / "nowhere") in capfd.readouterr().err


def test_images_are_decoded_once_until_a_file_changes(plan, tmp_path):
    folder, spec = images(tmp_path / "images", "normal"), spec_of(plan)
    ours = node(tmp_path, data=f"folder:{folder}")
    first = ours.describe(spec)
    assert (first.shape, first.classes) == ((1, 8, 8), ("normal",))
    unread(folder / "normal" / "3.png")
    assert ours.describe(spec) == first
    for size in (16, 32, None):  # settings of other runs need no decoding
        other = ours.describe(replace(spec, settings={**spec.settings, "size": size, "labels": "ignore"}))
        assert (other.shape, other.classes) == ((1, size or 32, size or 32), ())
    assert (tmp_path / "node" / "images.json").stat().st_mode & 0o077 == 0
    images(folder, "pneumonia", 5)
    with pytest.raises(VitrailError, match="cannot be read"):
        ours.describe(spec)
    images(folder, "normal")
    assert ours.describe(spec).classes == ("normal", "pneumonia")
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(folder / "normal" / "3.png")
    assert ours.describe(spec).shape == (3, 8, 8)


def test_a_node_that_lacks_a_label_may_list_all(plan, tmp_path):
    images(tmp_path / "images", "pneumonia")
    ours = node(tmp_path, data=f"folder:{tmp_path / 'images'}", classes="normal, pneumonia")
    described = ours.describe(spec_of(plan))
    assert described.classes == ("normal", "pneumonia")
    spec = replace(spec_of(plan), classes=described.classes)
    labels = ours.client(spec).images().labels
    assert labels is not None
    assert set(labels.tolist()) == {1}


def test_a_node_trains_on_all_its_images(plan, tmp_path):
    folder_of_images(tmp_path / "images" / "ill")
    ours = node(tmp_path, data=f"folder:{tmp_path / 'images'}")
    own_images = ours.client(replace(spec_of(plan), classes=("ill",))).images()
    assert plan.settings.test_fraction > 0
    assert sorted(own_images.pixels[:, 0, 0, 0].tolist()) == list(range(20))


def test_a_node_does_not_train_on_a_separate_test_folder(plan, tmp_path):
    for part in ("train", "test"):
        folder_of_images(tmp_path / "images" / part / "ill", 20 if part == "train" else 4)
    ours = node(tmp_path, data=f"folder:{tmp_path / 'images'}")
    assert len(ours.client(replace(spec_of(plan), classes=("ill",))).images()) == 20


@pytest.mark.parametrize(("label", "mode"), [("ill", "RGB"), ("new", "L")])
def test_a_node_whose_images_differ_from_its_description_refuses(plan, tmp_path, label, mode):
    folder_of_images(tmp_path / "images" / "ill")
    ours = node(tmp_path, data=f"folder:{tmp_path / 'images'}")
    described = ours.describe(spec_of(plan))
    spec = replace(spec_of(plan), shape=described.shape, classes=described.classes)
    (tmp_path / "images" / label).mkdir(exist_ok=True)
    Image.new(mode, (8, 8)).save(tmp_path / "images" / label / "new.png")
    with pytest.raises(VitrailError, match="differ from its description"):
        ours.client(spec).images()
