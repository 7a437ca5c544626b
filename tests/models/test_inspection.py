"""`vitrail show` describes what a model file contains."""

import io
import json
import os

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import vitrail
from tests.federation import quick
from vitrail.cli.main import app
from vitrail.models.inspection import inspect_model, show_model
from vitrail.models.model import Model
from vitrail.models.model_file import load, save_model
from vitrail.nets.generators import build_generator
from vitrail.nets.masked import Masked, encode_mask
from vitrail.utils import state
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng

TINY = {"data": "digits", "size": 8, "clients": 3, "batch_size": 10, "rounds": 1, "workers": 1}


@pytest.fixture(scope="module")
def prism(tmp_path_factory):
    return vitrail.train("prism", **TINY, local_steps=1, out=str(tmp_path_factory.mktemp("show") / "prism")).folder


@pytest.fixture(scope="module")
def fedgan(tmp_path_factory):
    return vitrail.train(
        "fedgan", **TINY, width=4, latent_dim=8, out=str(tmp_path_factory.mktemp("show") / "fedgan")
    ).folder


def text(found, width=200):
    console = Console(width=width, highlight=False, record=True, file=io.StringIO())
    show_model(found, console)
    return console.export_text()


@pytest.mark.parametrize("name", ["model", "best", "ensemble"])
def test_the_parts_add_up_to_the_file(prism, name):
    path = prism / f"{name}.safetensors"
    found = inspect_model(path)
    assert found["bytes"] == os.stat(path).st_size == sum(p["bytes"] for p in found["parts"])
    length = int.from_bytes(path.read_bytes()[:8], "little")
    assert found["parts"][-1] == {"name": "header", "type": "json", "bytes": 8 + length}


def test_the_share_of_ones_is_that_of_the_saved_mask(prism, tmp_path):
    tree = state.load(prism / "model.safetensors")["model"]
    masked = Masked(build_generator(tree["generator"], (1, 8, 8), 10, tree["width"]), tree["seed"])
    mask = np.arange(masked.size) % 5 == 0
    save_model(
        tmp_path / "m.safetensors", Model("masked", {**tree, "mask": encode_mask(masked, mask)}), "0123456789", {}
    )
    found = inspect_model(tmp_path / "m.safetensors")
    ones = -(-masked.size // 5)
    assert found["mask"] == {"elements": masked.size, "ones": ones, "share": ones / masked.size}
    assert found["float32_bytes"] == found["parts"][0]["float32_bytes"] == 4 * masked.size


def test_an_ensemble_shows_the_expected_share_of_ones(prism):
    found, generator = inspect_model(prism / "ensemble.safetensors"), load(prism / "ensemble.safetensors")
    generator.sample(1)
    drawn = torch.cat([p.flatten() for p in generator.net.masked.net.parameters()])
    assert found["mask"]["elements"] == len(drawn)
    assert found["mask"]["share"] == pytest.approx((drawn != 0).double().mean().item(), abs=0.01)  # four deviations
    assert found["parts"][0]["float32_bytes"] == 4 * len(drawn)


def test_ordinary_weights_are_listed_one_by_one(fedgan):
    found, weights = inspect_model(fedgan), load(fedgan).net.state_dict()
    assert [p["name"] for p in found["parts"][:-1]] == [f"weights/{name}" for name in weights]
    assert [p["bytes"] for p in found["parts"][:-1]] == [w.numel() * w.element_size() for w in weights.values()]
    assert "mask" not in found
    assert found["kind"] == "dcgan"
    assert found["parameters"] == sum(p.numel() for p in load(fedgan).net.parameters())
    assert "stored with the weights" in text(found)
    assert "…" not in text(found, 60)  # no text is cut off on a narrow console


def test_network_sizes_privacy_and_bytes_are_printed(prism):
    shown = text(inspect_model(prism))
    rows = [json.loads(line) for line in (prism / "metrics.jsonl").read_text().splitlines()]
    for words in (
        str(prism / "model.safetensors"),
        "small",
        "1 x 8 x 8",
        "10: 0, 1, 2",
        f"{sum(p.numel() for p in load(prism).net.parameters()):,}",
        str(state.load(prism / "model.safetensors")["model"]["seed"]),
        "computed when loading, from noise",
        load(prism).about["privacy"],
        load(prism).about["features"],
        load(prism).about["ruler"],
        "feature network of the rounds",
        f"{sum(r['bytes_up'] for r in rows):,}",
        f"{sum(r['bytes_down'] for r in rows):,}",
        f"{os.stat(prism / 'model.safetensors').st_size:,}",
    ):
        assert words in shown


def test_json_output_has_all_facts_and_stdout_nothing_else(prism):
    result = CliRunner().invoke(app, ["show", str(prism), "--json"])
    found = json.loads(result.stdout)
    assert (result.exit_code, result.stderr) == (0, "")
    assert found["about"] == load(prism).about
    assert found == inspect_model(prism)


def test_missing_privacy_is_shown_and_control_characters_are_removed(tmp_path):
    method = quick("prism")
    model = method.export_models(method.server_init(Rng((1,))))["generator"]
    about = {"data": "[red]\x1b[2Jmine", "array": np.zeros((2, 3)), "notes": ["one", "two"]}
    save_model(tmp_path / "m.safetensors", model, ["a\x07"] * 10, about)
    found = inspect_model(tmp_path / "m.safetensors")
    json.dumps(found, allow_nan=False)
    assert [p["name"] for p in found["parts"]] == ["mask", "about/array", "header"]
    shown = text(found)
    assert "not stated" in shown
    assert "[red]" in shown
    assert "float64 [2, 3]" in shown
    assert "one; two" in shown
    assert not {"\x1b", "\x07"} & set(shown)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update(kind="program"), "program"),
        (lambda t: t.pop("about"), "not a vitrail model"),
        (lambda t: t.update(about=[1]), "its field `about`"),
        (lambda t: t["model"].pop("seed"), "does not fit together"),
    ],
)
def test_a_damaged_model_is_refused_with_its_file_name(prism, tmp_path, change, message):
    tree = state.load(prism / "model.safetensors")
    change(tree)
    state.save(tmp_path / "bad.safetensors", tree)
    with pytest.raises(VitrailError, match=rf"bad\.safetensors.*{message}"):
        inspect_model(tmp_path / "bad.safetensors")


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(VitrailError, match="no model at"):
        inspect_model(tmp_path)
    (tmp_path / "x.safetensors").write_bytes(b"PK\x03\x04 not a model")
    with pytest.raises(VitrailError, match="damaged or not a vitrail file"):
        inspect_model(tmp_path / "x.safetensors")
