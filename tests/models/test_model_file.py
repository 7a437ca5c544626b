"""The model file: its size, safe loading, and refusal of files that do not fit."""

import numpy as np
import pytest
import torch
from PIL import Image

from tests.federation import federate, quick
from vitrail.models.image_grid import grid_columns
from vitrail.models.model_file import load, save_model
from vitrail.nets.masked import recalibrate
from vitrail.utils import state
from vitrail.utils.errors import Malformed, VitrailError

CLASSES = tuple("0123456789")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    method = quick("prism", rounds=1)
    fed, *_ = federate(method, folder / "clients")
    save_model(folder / "model.safetensors", method.export_models(fed.server)["generator"], CLASSES, {"seed": 0})
    return folder / "model.safetensors"


def damaged(path, tmp_path, change):
    tree = state.load(path)
    change(tree)
    state.save(tmp_path / "bad.safetensors", tree)
    return tmp_path / "bad.safetensors"


def test_a_model_file_has_little_more_than_one_bit_per_weight(path):
    assert path.stat().st_size < quick("prism").size / 8 + 2000


def test_images_do_not_depend_on_their_number(path):
    generator = load(path)
    few, many = (
        generator.sample(4, label=[1, 2, 3, 4], seed=2),
        generator.sample(300, label=[1, 2, 3, 4] * 75, seed=2),
    )
    assert torch.allclose(few, many[:4], atol=1e-6)


def test_an_image_does_not_depend_on_its_batch(path):
    generator = load(path)
    z = torch.randn(8, generator.z)
    together = generator.net(z, torch.arange(8))
    alone = torch.cat([generator.net(z[i : i + 1], torch.arange(8)[i : i + 1]) for i in range(8)])
    assert torch.allclose(together, alone, atol=1e-5)


def test_recalibration_sets_batch_norm_to_the_mean_over_batches():
    net = torch.nn.Sequential(torch.nn.BatchNorm2d(2, affine=False))
    batches = [(torch.randn(5, 2, 3, 3) + i,) for i in range(4)]
    recalibrate(net, batches)
    assert torch.allclose(net[0].running_mean, torch.stack([b.mean((0, 2, 3)) for (b,) in batches]).mean(0), atol=1e-5)
    assert not net.training


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t["model"].update(mask=t["model"]["mask"][:-1]),
        lambda t: t["model"].update(mask=t["model"]["mask"].astype(np.int64)),
        lambda t: t["model"].update(generator="huge"),
        lambda t: t["model"].update(shape=[1, 9, 9]),
        lambda t: t["model"].pop("seed"),
        lambda t: t.update(kind="program"),
        lambda t: t.update(format=99),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_its_file_name(path, tmp_path, change):
    with pytest.raises(VitrailError, match=r"bad\.safetensors"):
        load(damaged(path, tmp_path, change))


def test_a_file_that_is_not_a_model_is_refused(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"PK\x03\x04 not a model")
    with pytest.raises(Malformed, match="damaged or not a vitrail file"):
        load(tmp_path / "x.safetensors")
    with pytest.raises(VitrailError, match="no model at"):
        load(tmp_path)


def test_each_column_of_a_grid_has_one_class_and_few_classes_are_repeated():
    for classes in range(1, 25):
        for n in (classes, 2 * classes, 8 * classes, 30, 64):
            columns = grid_columns(n, classes)
            assert columns % classes == 0
            assert columns <= max(10, classes)
            assert columns >= min(6, n)
            assert columns < n + classes


def test_a_grid_contains_every_image(path, tmp_path):
    generator = load(path)
    generator.grid(tmp_path / "g.png", 20)
    image = np.asarray(Image.open(tmp_path / "g.png"))
    assert image.shape == ((2 * 10 + 2) * 8, (10 * 10 + 2) * 8)
    first = (generator.sample(20)[0, 0] * 255).round().byte().numpy()
    assert np.array_equal(image[16 : 16 + 64 : 8, 16 : 16 + 64 : 8], first)
