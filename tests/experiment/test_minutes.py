"""`minutes=` decides the number of rounds, and nothing else."""

from __future__ import annotations

import pytest

import vitrail
from vitrail.experiment import train as training
from vitrail.experiment.compare import changed_settings
from vitrail.experiment.run_dir import RunDir
from vitrail.experiment.settings import resolve, sets_rounds
from vitrail.utils.errors import VitrailError

SMALL = {"data": "digits", "size": 8, "clients": 2, "workers": 1, "grids": 0, "eval_every": 0, "local_steps": 1,
         "batch_size": 10}  # fmt: skip


def test_rounds_fill_the_time_and_a_repeated_run_has_the_same_bits(tmp_path):
    run = vitrail.train("prism", minutes=0.05, out=str(tmp_path / "a"), **SMALL)
    assert 1 <= len(run.rows) == run.settings.rounds  # 1 on a busy machine
    assert run.settings.minutes == 0.05
    again = vitrail.train(str(run.folder / "settings.toml"), out=str(tmp_path / "b"))
    assert (again.folder / "model.safetensors").read_bytes() == (run.folder / "model.safetensors").read_bytes()


def test_rounds_are_computed_from_the_median_without_the_first_round(tmp_path, monkeypatch):
    class Trial:
        rows = ({"seconds": 4.0}, {"seconds": 2.0}, {"seconds": 2.0}, {"seconds": 100.0})

    monkeypatch.setattr(training, "start_run", lambda *_: Trial)
    settings = resolve("prism", {"minutes": 1.0, "out": str(tmp_path)})
    assert training.rounds_in_time(settings) == 60 // 2
    assert training.rounds_in_time(settings.model_copy(update={"minutes": 0.01})) == 1


def test_given_rounds_are_not_changed():
    assert not sets_rounds(resolve("prism", {"minutes": 1, "rounds": 3}))
    assert not sets_rounds(resolve("prism", {}))
    assert sets_rounds(resolve("prism", {"minutes": 1}))


def test_a_comparison_takes_a_stored_run_of_the_same_minutes_only(tmp_path):
    run = vitrail.train("prism", minutes=0.01, out=str(tmp_path / "a"), **SMALL)
    wanted = resolve("prism", {**SMALL, "minutes": 0.01})
    assert changed_settings(wanted, 0, RunDir(run.folder)) == []
    assert changed_settings(resolve("prism", {**SMALL, "minutes": 2}), 0, RunDir(run.folder)) == ["minutes"]


def test_too_short_a_time_is_refused():
    with pytest.raises(VitrailError, match="minutes"):
        resolve("prism", {"minutes": 0})
