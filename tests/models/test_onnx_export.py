"""An exported generator gives torch's images where there is no torch."""

import json
import logging
import os
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from typer.testing import CliRunner

import vitrail
from vitrail.cli.main import app
from vitrail.experiment import settings as config
from vitrail.methods.base import Task
from vitrail.models import onnx_export
from vitrail.models.model_file import load, open_model
from vitrail.models.onnx_export import check_installed, export_onnx
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng

pytestmark = pytest.mark.slow

TINY = {"data": "digits", "size": 8, "clients": 3, "batch_size": 10, "rounds": 1, "workers": 1, "eval_every": 0}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return vitrail.train("prism", **TINY, local_steps=1, out=str(tmp_path_factory.mktemp("export") / "run")).folder


@pytest.fixture(scope="module")
def exported(run):
    return export_onnx(load(run), run / "model.onnx")


def untrained(name, labels, **settings):
    method = config.build_method(config.resolve(name, settings), Task((3, 8, 8), labels, 1, 3))
    return open_model(method.export_models(method.server_init(Rng((1,))))["generator"], tuple("0123456789")[:labels])


def made(path, **inputs):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(["images"], inputs)[0]


def noise(generator, n, seed):
    """The noise of `Generator.sample`."""
    return torch.randn(n, generator.z, generator=Rng((seed,)).child("sample").torch()).numpy()


@pytest.mark.parametrize("n", [1, 2, 33])
def test_images_are_those_of_sample_for_any_number(run, exported, n):
    generator, labels = load(run), np.arange(n) * 7 % 10
    images = made(exported.path, z=noise(generator, n, seed=4), label=labels)
    expected = generator.sample(n, labels.tolist(), seed=4).numpy()
    assert images.dtype == np.float32
    assert images.shape == (n, 1, 8, 8)
    assert expected.std() > 0.05  # constant images would prove nothing
    assert np.abs(images - expected).max() < 1e-5


@pytest.mark.parametrize(
    ("method", "labels", "settings"),
    [
        ("fedgan", 10, {"width": 4, "latent_dim": 8}),
        ("prism", 0, {"generator": "dcgan", "width": 0.1}),
        ("moments", 10, {"network": "dense", "generator": "smooth", "width": 0.2}),
        ("padpaf", 10, {"width": 4, "latent_dim": 8, "label_maps": "federated"}),
        ("padpaf", 0, {"width": 4, "latent_dim": 8}),
    ],
    ids=["ordinary weights", "masked, without labels", "dense", "content", "content, without labels"],
)
def test_other_model_kinds_and_models_without_labels_are_exported(method, labels, settings, tmp_path):
    generator = untrained(method, labels, **settings)
    done = export_onnx(generator, tmp_path / "m.onnx")
    given = {"label": np.array([3, 1, 4])} if labels else {}
    assert [i.name for i in onnx.load(done.path).graph.input] == ["z", *given]
    images = made(done.path, z=noise(generator, 3, seed=2), **given)
    expected = generator.sample(3, [3, 1, 4] if labels else None, seed=2).numpy()
    assert images.shape == (3, 3, 8, 8)
    assert expected.std() > 1e-3
    assert np.abs(images - expected).max() < 1e-5


def test_a_masked_generator_takes_one_byte_per_weight(run, exported):
    size = sum(p.numel() for p in load(run).net.parameters())
    assert exported.bytes == os.stat(exported.path).st_size
    assert size < exported.bytes < 0.3 * 4 * size


def test_weights_of_a_layer_without_batch_norm_are_stored_exactly(run, exported):
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(exported.path).graph.initializer}
    last = stored["net.last.weight.signs"]
    assert last.dtype == np.int8
    assert np.array_equal(last * stored["net.last.weight.a"], load(run).net.last.weight.detach().numpy())


@pytest.mark.parametrize("axis", [0, 1])
def test_a_magnitude_may_differ_between_channels_but_not_within_one(axis):
    weights = np.sign(np.random.default_rng(0).normal(size=(6, 5, 3, 3))).astype(np.float32)
    weights[:, :, 0] = 0
    a = np.moveaxis(np.arange(1, weights.shape[axis] + 1, dtype=np.float32)[:, None, None, None], 0, axis)
    found, along = onnx_export._magnitudes(weights * a)
    assert along == axis
    assert np.array_equal(found, a.ravel())
    weights[2, 2, 2, 2] *= 1.5
    assert onnx_export._magnitudes(weights * a) is None


def test_the_file_has_its_facts_and_no_local_paths(run, exported):
    proto = onnx.load(exported.path)
    facts = json.loads({p.key: p.value for p in proto.metadata_props}["vitrail"])
    assert facts["classes"] == list("0123456789")
    assert facts["z"] == proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value == 64
    assert facts["about"] == load(run).about
    assert facts["about"]["privacy"]
    raw = exported.path.read_bytes()
    assert os.path.dirname(vitrail.__file__).encode() not in raw
    assert b".py" not in raw


def test_the_command_prints_code_that_works_without_torch(run, tmp_path, caplog, recwarn, monkeypatch):
    monkeypatch.setattr(logging.getLogger("torch"), "propagate", True)  # so that caplog records the exporter's warnings
    path = tmp_path / "a name.onnx"
    result = CliRunner().invoke(app, ["export", str(run), "--onnx", str(path)])
    assert (result.exit_code, result.stderr, recwarn.list) == (0, "", [])
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []
    assert f"{path.stat().st_size:,} bytes" in result.stdout
    assert "largest difference" in result.stdout
    *_, a, b, c = result.stdout.strip().splitlines()
    check = "import sys; print('torch' in sys.modules, images.shape, images.min() >= 0, images.max() <= 1)"
    done = subprocess.run([sys.executable, "-c", "\n".join([a, b, c, check])], capture_output=True, text=True)
    assert done.stdout.strip() == "False (8, 1, 8, 8) True True", done.stderr


def test_a_file_with_wrong_images_is_never_written(run, exported, tmp_path, monkeypatch):
    wrong, path = onnx.load(exported.path), tmp_path / "m.onnx"
    for tensor in wrong.graph.initializer:
        if tensor.name == "net.last.weight.a":
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * 1.01, tensor.name))
    path.write_bytes(b"an earlier file")
    monkeypatch.setattr(onnx_export, "_traced", lambda *_: wrong)
    with pytest.raises(VitrailError, match="differ from torch's by up to 0"):
        export_onnx(load(run), path)
    wrong.graph.node.pop()
    with pytest.raises(VitrailError, match=r"m\.onnx was not written.*ValidationError"):
        export_onnx(load(run), path)
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
    assert path.read_bytes() == b"an earlier file"


def test_an_ensemble_is_refused_with_the_remedy(run, tmp_path):
    with pytest.raises(VitrailError, match=r"new mask for every batch.*model\.safetensors"):
        export_onnx(load(run / "ensemble.safetensors"), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_other_suffixes_and_missing_folders_are_refused(tmp_path):
    generator = untrained("fedgan", 0, width=4, latent_dim=8)
    with pytest.raises(VitrailError, match=r"ends in \.onnx"):
        export_onnx(generator, tmp_path / "m.pt")
    with pytest.raises(VitrailError, match="cannot write"):
        export_onnx(generator, tmp_path / "nowhere" / "m.onnx")


@pytest.mark.parametrize("name", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_extra_is_named(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(VitrailError, match=rf'{name} is not installed.*pip install "vitrail\[onnx\]"'):
        check_installed()
