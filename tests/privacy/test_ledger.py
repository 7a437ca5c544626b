"""A ledger that was changed shows it; one that was not goes on after a restart."""

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
    kept = Ledger(tmp_path / "ledger.json")
    for n in range(4):
        kept.write(kind="round", round=n, asked=["ä", "b"])
    return kept


def test_a_ledger_is_read_as_it_was_written_and_is_plain_json(ledger):
    assert read(ledger.path) == ledger.entries == json.loads(ledger.path.read_text("utf-8"))
    assert Ledger(ledger.path).head == ledger.head != ""


def _lines(change):
    def spoil(path):
        lines = path.read_text("utf-8").splitlines()
        path.write_text("\n".join(change(lines)), "utf-8")

    return spoil


SPOILED = {
    "a figure": _lines(lambda x: [line.replace('"round": 2', '"round": 7') for line in x]),
    "a line taken out": _lines(lambda x: x[:2] + x[3:]),
    "lines swapped": _lines(lambda x: [x[0], x[2], x[1], *x[3:]]),
    "a line put in twice": _lines(lambda x: [*x[:2], *x[1:]]),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_changed_line_shows(ledger, how):
    SPOILED[how](ledger.path)
    with pytest.raises(Malformed, match=r"was changed|not a ledger"):
        read(ledger.path)


def test_lines_cut_off_at_the_end_show_by_the_model_file(tmp_path):
    run = vitrail.train("moments", data="digits", size=8, rounds=2, local_steps=1, batch_size=10, workers=1, grids=0,
                        eval_every=0, out=str(tmp_path / "run"))  # fmt: skip
    checked = read_run_ledger(run.folder)
    entries = checked.entries
    assert [e["kind"] for e in entries] == ["opening", "round", "closing"]
    assert "last line" in checked.model
    assert entries[0]["private"] is True
    path = run.folder / "ledger.json"
    whole = path.read_text("utf-8")
    path.write_text(whole.replace(",\n" + whole.splitlines()[3], ""), "utf-8")
    assert len(read(path)) == 2  # the chain itself holds
    with pytest.raises(Malformed, match="no closing entry names it"):
        read_run_ledger(run.folder)


SMALL = {"data": "digits", "size": 8, "local_steps": 1, "batch_size": 10, "clients": 3, "workers": 1, "grids": 0}


def test_noise_of_the_operating_system_is_never_the_same_twice_and_the_ledger_says_where_it_came_from(tmp_path):
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


def test_features_that_saw_the_data_make_no_run_private(tmp_path):
    from vitrail.experiment.plan import prepare
    from vitrail.privacy.run_ledger import opening

    plan = prepare(resolve("moments", {"data": "digits", "size": 8, "out": str(tmp_path / "x")}))
    assert opening(plan)["private"] is True
    seen = replace(plan, data=replace(plan.data, name="fashion-mnist"))
    assert opening(seen)["private"] is False
    assert "trained on this very data" in opening(seen)["says"]


def test_after_a_restart_no_round_stands_twice(tmp_path):
    class Killed(Exception):
        pass

    class Watch:
        def on_run_start(self, *_): ...
        def on_reply(self, outcome):
            if outcome.round == 1 and len(outcome.replied) == 2:
                raise Killed

        def on_round_end(self, *_): ...
        def on_run_end(self, *_): ...

    with pytest.raises(Killed):
        vitrail.train("prism", privacy="mask-update", epsilon=9.8, rounds=3, eval_every=0, callbacks=[Watch()],
                      out=str(tmp_path / "run"), **SMALL)  # fmt: skip
    assert [e["kind"] for e in read(tmp_path / "run/ledger.json")] == ["opening", "round", "round"]
    run = vitrail.resume(tmp_path / "run")
    entries = read_run_ledger(run.folder).entries
    assert [e.get("round") for e in entries] == [None, 0, 1, 2, None]
    assert entries[-1]["epsilon"] == pytest.approx(9.8, rel=1e-4)
    assert entries[-1]["checked_epsilon"] == pytest.approx(9.8, rel=0.01)
    assert "client-level" in run.privacy
