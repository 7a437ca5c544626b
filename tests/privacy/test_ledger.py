"""Ledgers: changes are detected, and a ledger continues after a restart."""

import json
from dataclasses import replace

import pytest

import vitrail
from vitrail.experiment.settings import resolve
from vitrail.privacy.checked_ledger import read_run_ledger
from vitrail.privacy.ledger import Ledger, read
from vitrail.utils.errors import Malformed
from vitrail.utils.state import load


@pytest.fixture
def ledger(tmp_path):
    written = Ledger(tmp_path / "ledger.json")
    for n in range(4):
        written.write(kind="round", round=n, asked=["ä", "b"])
    return written


def test_a_ledger_is_plain_json_and_reads_back_unchanged(ledger):
    assert read(ledger.path) == ledger.entries == json.loads(ledger.path.read_text("utf-8"))
    assert Ledger(ledger.path).head == ledger.head != ""


def _lines(change):
    def spoil(path):
        lines = path.read_text("utf-8").splitlines()
        path.write_text("\n".join(change(lines)), "utf-8")

    return spoil


SPOILED = {
    "a number changed": _lines(lambda x: [line.replace('"round": 2', '"round": 7') for line in x]),
    "a line removed": _lines(lambda x: x[:2] + x[3:]),
    "lines swapped": _lines(lambda x: [x[0], x[2], x[1], *x[3:]]),
    "a line repeated": _lines(lambda x: [*x[:2], *x[1:]]),
}


@pytest.mark.parametrize("how", SPOILED)
def test_changed_lines_are_detected(ledger, how):
    SPOILED[how](ledger.path)
    with pytest.raises(Malformed, match=r"was changed|not a ledger"):
        read(ledger.path)


def test_lines_cut_off_at_the_end_are_detected_by_the_model_file(tmp_path):
    run = vitrail.train("moments", data="digits", size=8, rounds=2, local_steps=1, batch_size=10, workers=1, grids=0,
                        eval_every=0, out=str(tmp_path / "run"))  # fmt: skip
    checked = read_run_ledger(run.folder)
    entries = checked.entries
    assert [e["kind"] for e in entries] == ["opening", "round", "closing"]
    assert "last entry" in checked.model
    assert entries[0]["private"] is True
    path = run.folder / "ledger.json"
    whole = path.read_text("utf-8")
    path.write_text(whole.replace(",\n" + whole.splitlines()[3], ""), "utf-8")
    assert len(read(path)) == 2  # the chain itself is valid
    with pytest.raises(Malformed, match="no closing entry names it"):
        read_run_ledger(run.folder)


SMALL = {"data": "digits", "size": 8, "local_steps": 1, "batch_size": 10, "clients": 3, "workers": 1, "grids": 0}


def test_the_ledger_records_the_noise_source_and_system_noise_never_repeats(tmp_path):
    runs = [
        vitrail.train("moments", noise_source=e, rounds=1, eval_every=0, out=str(tmp_path / str(i)), **SMALL)
        for i, e in enumerate(("os", "os", "seed", "seed"))
    ]
    sums = [load(run.folder / "checkpoint.safetensors")["federation"]["server"]["sums"] for run in runs]
    assert (sums[0] != sums[1]).mean() > 0.9
    assert (sums[2] == sums[3]).all()
    assert [read(run.folder / "ledger.json")[0]["noise_from"].split(":")[0] for run in runs[1:3]] == [
        "the operating system",
        "the run's seed",
    ]


def test_a_run_with_features_trained_on_its_data_is_not_private(tmp_path):
    from vitrail.experiment.plan import prepare
    from vitrail.experiment.run_ledger import opening_claim

    plan = prepare(resolve("moments", {"data": "digits", "size": 8, "out": str(tmp_path / "x")}))
    assert opening_claim(plan)["private"] is True
    seen = replace(plan, data=replace(plan.data, name="fashion-mnist"))
    assert opening_claim(seen)["private"] is False
    assert "trained on this very data" in opening_claim(seen)["says"]


def test_after_a_restart_no_round_is_recorded_twice(tmp_path):
    class Killed(Exception):
        pass

    class Stop(vitrail.Callback):
        def on_run_start(self, *_): ...
        def on_reply(self, outcome):
            if outcome.round == 1 and len(outcome.replied) == 2:
                raise Killed

        def on_round_end(self, *_): ...
        def on_run_end(self, *_): ...

    with pytest.raises(Killed):
        vitrail.train("prism", privacy="mask-update", epsilon=9.8, rounds=3, eval_every=0, callbacks=[Stop()],
                      out=str(tmp_path / "run"), **SMALL)  # fmt: skip
    assert [e["kind"] for e in read(tmp_path / "run/ledger.json")] == ["opening", "round", "round"]
    run = vitrail.resume(tmp_path / "run")
    entries = read_run_ledger(run.folder).entries
    assert [e.get("round") for e in entries] == [None, 0, 1, 2, None]
    assert entries[-1]["epsilon"] == pytest.approx(9.8, rel=1e-4)
    assert entries[-1]["checked_epsilon"] == pytest.approx(9.8, rel=0.01)
    assert "client-level" in run.privacy
