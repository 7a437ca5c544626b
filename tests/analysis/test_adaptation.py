"""Adaptation to new clients."""

import json

import numpy as np
import pytest

import vitrail
from tests.analysis.conftest import SMALL
from vitrail.analysis.adaptation import adapt
from vitrail.experiment.callbacks import Callback
from vitrail.utils.errors import VitrailError
from vitrail.utils.state import load as load_state

pytestmark = pytest.mark.slow


def test_new_clients_start_with_the_runs_content_and_an_untrained_style(folder, tmp_path):
    curves = adapt(folder, "domains:solarize,erase", 2, tmp_path / "new", samples=20)
    assert list(curves) == ["adapted", "from scratch"]
    assert all(list(by) == [1, 2] and set(by[1]) == {"solarize", "erase"} for by in curves.values())
    saved = json.loads((tmp_path / "new" / "adaptation.json").read_text())
    assert saved["curves"]["adapted"]["2"] == curves["adapted"][2]
    assert (tmp_path / "new" / "adaptation.png").exists()
    assert (tmp_path / "new" / "adapted.png").exists()
    before = load_state(folder / "checkpoint.safetensors")["federation"]["server"]
    after, scratch = (
        load_state(tmp_path / "new" / name / "checkpoint.safetensors")["federation"]["server"]
        for name in ("adapted", "from-scratch")
    )
    moved = np.abs(after["generator"] - before["generator"]).max()
    assert 0 < moved <= 2 * 0.011  # two steps of the server's Adam from where the run ended
    assert np.abs(scratch["generator"] - before["generator"]).max() > moved
    assert np.array_equal(after["seed"], before["seed"])
    assert after["rounds"] == 2
    earlier, later = (
        load_state(p / "clients" / f"{c}.safetensors")["state"]
        for p, c in ((folder, "blur"), (tmp_path / "new" / "adapted", "erase"))
    )
    assert later["t"] < 2 * earlier["t"]  # only its own steps, on a larger share of the images
    assert not (tmp_path / "new" / "adapted" / "clients" / "blur.safetensors").exists()


def test_an_interrupted_adaptation_continues_with_its_curve(folder, tmp_path):
    class Stopped(Exception):
        pass

    class StopsAtOnce(Callback):
        def on_round_end(self, outcome, row):
            raise Stopped

    to, samples = "domains:solarize,erase", 20
    whole = adapt(folder, to, 3, tmp_path / "whole", scratch=False, samples=samples)
    with pytest.raises(Stopped):
        adapt(folder, to, 3, tmp_path / "cut", scratch=False, samples=samples, watch=StopsAtOnce())
    assert list(json.loads((tmp_path / "cut" / "adaptation.json").read_text())["curves"]["adapted"]) == ["1"]
    assert adapt(folder, to, 3, tmp_path / "cut", scratch=False, samples=samples) == whole
    with pytest.raises(VitrailError, match="with another rounds"):
        adapt(folder, to, 4, tmp_path / "cut", scratch=False, samples=samples)
    saved = tmp_path / "cut" / "adaptation.json"
    tree = json.loads(saved.read_text())
    del tree["curves"]["adapted"]["3"]  # interrupted between the last checkpoint and its evaluation
    saved.write_text(json.dumps(tree))
    assert adapt(folder, to, 3, tmp_path / "cut", scratch=False, samples=samples) == whole
    saved.unlink()
    with pytest.raises(VitrailError, match=r"contains runs, but no adaptation\.json"):
        adapt(folder, to, 3, tmp_path / "cut", scratch=False, samples=samples)


def test_settings_that_fit_only_the_earlier_clients_are_reset(tmp_path):
    out = tmp_path / "run"
    vitrail.train(
        "padpaf", **SMALL, partition="domains:invert,blur,zoom-out", labels="ignore", clients_per_round=3, quorum=3, out=str(out)
    )  # fmt: skip
    assert list(adapt(out, "domains:solarize", 1, tmp_path / "new", scratch=False, samples=20)["adapted"]) == [1]
    few = adapt(
        out,
        "domains:solarize,erase",
        1,
        tmp_path / "few",
        scratch=False,
        samples=20,
        overrides={"clients_per_round": 1},
    )
    assert len(few["adapted"][1]) == 1
    assert (tmp_path / "few" / "adapted.png").exists(), "clients without a request are not in the grid"
