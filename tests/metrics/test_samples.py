"""Given images: their classes against those of the data that they imitate."""

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from vitrail.cli.main import app
from vitrail.data import load
from vitrail.metrics.samples import evaluate_samples, load_samples
from vitrail.models.model import Model
from vitrail.models.model_file import save_model
from vitrail.nets.dcgan import DcganGenerator
from vitrail.utils.errors import VitrailError

PIXELS = np.random.default_rng(0).integers(0, 256, (240, 8, 8), np.uint8)
LABELS = np.arange(240) % 2


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for i, pixels in enumerate(PIXELS):
        path = folder / ("zero", "one")[i % 2] / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path)
    return load(f"folder:{folder}", size=8)


def test_samples_of_a_model_are_measured_with_the_models_class_names(tmp_path, real):
    weights = DcganGenerator((1, 8, 8), 2, 4, 8).state_dict()
    tree = {"shape": [1, 8, 8], "classes": 2, "width": 4, "z": 8, "weights": weights}
    save_model(tmp_path / "m.safetensors", Model("dcgan", tree), real.classes, {})
    words = ["sample", str(tmp_path / "m.safetensors"), "-n", "40", "-o", str(tmp_path / "s.npz")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    with np.load(tmp_path / "s.npz") as arrays:
        assert arrays["classes"].tolist() == ["one", "zero"]
    assert load_samples(f"npz:{tmp_path}/s.npz", real).classes == real.classes
    _, (column,) = evaluate_samples(f"npz:{tmp_path}/s.npz", real.name, families=["pixels"], n=40)
    assert column.measures


def test_labels_that_are_integers_are_positions_in_the_datas_classes(tmp_path, real):
    spec = f"npz:{tmp_path}/a.npz"
    np.savez(tmp_path / "a.npz", images=PIXELS, labels=LABELS)
    assert load_samples(spec, real).classes == real.classes == ("one", "zero")
    for other in (
        {"labels": np.arange(240) % 3},  # a third class
        {"labels": LABELS + 1},
        {"labels": LABELS, "classes": np.array(["zero", "one"])},
    ):
        np.savez(tmp_path / "a.npz", images=PIXELS, **other)
        with pytest.raises(VitrailError, match=r"the given images have the classes .* has one, zero"):
            evaluate_samples(spec, real.name, families=["pixels"])


def test_labels_are_no_positions_where_the_data_has_integers_as_names(tmp_path, real):
    from dataclasses import replace

    np.savez(tmp_path / "a.npz", images=PIXELS, labels=LABELS)
    assert load_samples(f"npz:{tmp_path}/a.npz", replace(real, classes=("1", "2"))).classes == ("0", "1")
