"""Model files and run folders of version 0.1.0 can be read by this version."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from vitrail.cli.main import app
from vitrail.experiment import settings as config
from vitrail.experiment.train import start_run
from vitrail.models.model_file import load, load_classifier

OLD = Path(__file__).parents[1] / "fixtures" / "v0.1.0"
RUNS = sorted(path.parent.name for path in OLD.glob("*/settings.toml"))
MODELS = sorted(str(path.relative_to(OLD)) for path in OLD.glob("*/*.safetensors") if path.stem != "checkpoint")


@pytest.fixture
def runs(tmp_path):
    return Path(shutil.copytree(OLD, tmp_path / "runs"))


def vitrail(*words):
    result = CliRunner().invoke(app, [str(w) for w in words], env={"COLUMNS": "400"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("name", MODELS)
def test_a_model_file_of_0_1_0_gives_the_same_images(name):
    expected = np.load(OLD / "expected.npz")[name]
    if "classifier" in name:
        made = load_classifier(OLD / name).logits(torch.linspace(0, 1, 4 * 64).view(4, 1, 8, 8)).numpy()
    else:
        made = load(OLD / name).sample(10, seed=3).numpy()
    assert made.shape == expected.shape
    assert np.abs(made - expected).max() < 1e-4  # not to the bit: the processor may be another


@pytest.mark.parametrize("name", MODELS)
def test_a_model_file_of_0_1_0_can_be_shown(name):
    shown = vitrail("show", OLD / name)
    assert "vitrail version" in shown
    assert "0.1.0" in shown


@pytest.mark.parametrize("run", RUNS)
def test_a_ledger_of_0_1_0_can_be_read(run):
    shown = vitrail("privacy", OLD / run)
    assert ("ε = 8 at δ = 1e-05" if run == "moments" else "not private") in shown


@pytest.mark.parametrize("run", RUNS)
def test_a_run_folder_of_0_1_0_gives_a_report(run, runs):
    vitrail("report", runs / run)
    assert (runs / run / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize("run", RUNS)
def test_the_settings_of_a_run_of_0_1_0_are_still_settings(run):
    assert config.resolve(str(OLD / run / "settings.toml"), {}).method == run


def test_a_run_of_0_1_0_can_be_the_start_of_another(runs, tmp_path):
    settings = {"init_from": str(runs / "prism"), "out": str(tmp_path / "new"), "rounds": 1}
    start_run(config.resolve(str(runs / "prism" / "settings.toml"), settings))
    assert load(tmp_path / "new").sample(2).shape == (2, 1, 8, 8)
