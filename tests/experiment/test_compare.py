"""A comparison: the same data and seeds for all, one table, and it goes on where it stopped."""

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from vitrail.experiment import compare as module
from vitrail.experiment.callbacks import Callback
from vitrail.experiment.compare import EvalConfig, check, compare, entries
from vitrail.experiment.run_dir import RunDir
from vitrail.experiment.settings import resolve
from vitrail.report import comparison_tables as table_module
from vitrail.report.comparison_tables import as_csv, by_settings, differing, markdown, notes, standings
from vitrail.utils.errors import VitrailError

FILE = """
method = "fedgan"
data = "digits"
size = 8
clients = 2
rounds = 2
width = 4
latent_dim = 8
batch_size = 256
workers = 1

[[runs]]
name = "sync d&g"

[[runs]]
name = "sync g"
sync = "g"
"""
EVAL = EvalConfig(n=100, families=("fd-vitrail",))


@pytest.fixture
def file(tmp_path):
    (tmp_path / "both.toml").write_text(FILE)
    return str(tmp_path / "both.toml")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    (folder / "both.toml").write_text(FILE)
    found = entries([str(folder / "both.toml")], {})
    compare(found, [0, 1], folder / "out", EVAL, lambda *_: Callback())
    return folder, found


def test_a_file_of_several_runs_gives_one_entry_each_and_overrides_change_all(file):
    found = entries([file, "prism"], {"rounds": 7})
    assert [e.name for e in found] == ["sync d&g", "sync g", "prism"]
    assert [e.settings.rounds for e in found] == [7, 7, 7]
    assert [getattr(e.settings, "sync", "") for e in found] == ["d&g", "g", ""]


def test_every_run_is_repeated_in_each_setting_and_named_after_it(tmp_path):
    text = """clients = 4
    rounds = 2
    ["fedavg, fedprox"]
    rounds = 3
    [fedprox]
    prox_mu = 0.5
    [each]
    "one class" = {partition = "classes:1", clients = 10}
    "IID" = {partition = "iid"}
    [[runs]]
    name = "FedAvg"
    method = "fedavg"
    [[runs]]
    name = "FedProx"
    method = "fedprox"
    clients = 5
    """
    (tmp_path / "x.toml").write_text(text)
    found = entries([str(tmp_path / "x.toml")], {})
    assert [e.name for e in found] == ["one class, FedAvg", "one class, FedProx", "IID, FedAvg", "IID, FedProx"]
    assert [e.settings.partition for e in found] == ["classes:1", "classes:1", "iid", "iid"]
    assert [e.settings.clients for e in found] == [10, 5, 4, 5], "a run's own word counts most"
    assert [e.settings.rounds for e in found] == [3, 3, 3, 3], "a method's table counts more than what all have"
    assert [getattr(e.settings, "prox_mu", None) for e in found] == [None, 0.5, None, 0.5]


def test_a_file_of_several_runs_is_no_single_run(file):
    with pytest.raises(VitrailError, match="vitrail compare"):
        resolve(file, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('method = "fedgan"\nruns = 3', "runs must be tables"),
        ('method = "fedgan"\neach = 3', "must have names with settings"),
        ('method = "fedgan"\n[each]\niid = 3', "must have names with settings"),
        ('method = "fedgan"\n[each]\niid = {snyc = "g"}', "did you mean sync"),
        ('method = "fedgan"\n["fedgan, fedagv"]\nrounds = 3', "fedagv"),
        ('method = "fedgan"\n[[runs]]\nname = "a"\n[[runs]]\nname = "a"', "a run is called 'a'"),
        ('method = "fedgan"\n[[runs]]\nname = ".."', "a run is called '..'"),
        ('method = "fedgan"\n[[runs]]\nname = "/"', "a run is called '/'"),
        ('method = "fedgan"\n[[runs]]\nname = "a"\nsnyc = "g"', "did you mean sync"),
    ],
)
def test_problems_of_a_comparison_are_reported(text, message, tmp_path):
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(VitrailError, match=message):
        entries([str(tmp_path / "x.toml")], {})


def test_every_run_has_its_seeds_and_the_same_data_and_partition(compared):
    _, found = compared
    assert [len(e.runs) for e in found] == [2, 2]
    a, b = (RunDir(e.runs[0]) for e in found)
    assert a.partition.read_bytes() == b.partition.read_bytes()
    seeds = [resolve(str(RunDir(run).settings), {}).seed for e in found for run in e.runs]
    assert seeds == [0, 1, 0, 1]


def test_the_table_has_means_and_spreads_over_seeds(compared):
    _, found = compared
    values = [next(m.value for m in ms if m.name == "fd-vitrail") for ms in found[0].found]
    table = standings(found, EVAL)
    row = dict(zip(table.columns, table.rows[0], strict=True))
    mean, sd = row["fd-vitrail ↓"].split(" ± ")
    assert float(mean) == pytest.approx(np.mean(values), rel=0.01)
    assert float(sd) == pytest.approx(np.std(values, ddof=1), rel=0.01)
    up = np.mean([sum(r["bytes_up"] for r in RunDir(run).rows()) for run in found[0].runs])
    assert float(row["up"].split()[0]) * 1000 == pytest.approx(up, rel=0.01)
    assert markdown(table).splitlines()[0].startswith("| run | seeds | fd-vitrail ↓ |")
    assert markdown(table).count("\n| sync") == 2


def test_runs_in_several_settings_are_also_shown_side_by_side(compared):
    _, (a, b) = compared
    found = [replace(a, name="few, A", where="few"), replace(b, name="few, B", where="few")]
    found += [replace(b, name="many, A", where="many")]
    (table,) = by_settings(found)
    assert table.columns == ["fd-vitrail ↓", "few", "many"]
    ours, theirs = (standings([e], EVAL).rows[0][2] for e in (a, b))
    assert table.rows == [["A", ours, theirs], ["B", theirs, ""]]
    other = [[replace(m, extractor="another") for m in ms] for ms in b.found]
    (table,) = by_settings([*found[:2], replace(found[2], found=other)])
    assert table.rows == [["A", ours, theirs], ["B", theirs, ""]], "other data may have another network"
    assert by_settings([a, b]) == []


def test_the_notes_list_equal_and_different_settings(compared):
    _, found = compared
    assert differing(found) == ["sync"]
    text = notes(found, EVAL)
    assert "data=digits" in text
    assert "Different: sync." in text
    assert "biased upwards: 100 samples for 384 dimensions" in text


def test_the_notes_list_every_setting_that_was_given_for_all_runs():
    text = notes(entries(["prism", "moments"], {"local_steps": 3, "size": 8}), EVAL)
    assert "local_steps=3" in text.partition("Different:")[0]
    assert "batch_size" not in text.partition("Different:")[0]


def test_unequal_compute_is_reported(compared, monkeypatch):
    _, found = compared
    slow = {found[0].runs[0].parent: 100.0}
    monkeypatch.setattr(table_module, "_seconds", lambda run: slow.get(run.parent, 10.0))
    assert "Compute was not the same: rounds took from 10 to 100 seconds" in notes(found, EVAL)


def test_the_csv_has_every_measure_of_every_seed(compared):
    _, found = compared
    rows = list(csv.DictReader(as_csv(found).splitlines()))
    assert len(rows) == sum(len(ms) for e in found for ms in e.found)
    first = found[0].found[0][0]
    assert float(rows[0]["value"]) == first.value
    assert {r["seed"] for r in rows} == {"0", "1"}
    of_run = RunDir(found[0].runs[0]).rows()
    assert int(rows[0]["bytes_up"]) == sum(r["bytes_up"] for r in of_run)
    assert float(rows[0]["seconds"]) == pytest.approx(sum(r["seconds"] for r in of_run))
    assert {r["epsilon"] for r in rows} == {"none"}


def test_the_table_has_epsilon_by_the_ledger_and_its_unit(compared, tmp_path):
    _, found = compared
    private = entries(["moments"], {"data": "digits", "size": 8, "clients": 2, "rounds": 1, "local_steps": 1})
    compare(private, [0], tmp_path / "out", EVAL, lambda *_: Callback())
    table = standings([found[0], *private], EVAL)
    column = table.columns.index("ε")
    assert [row[column] for row in table.rows] == ["none", "9.8 per image"]
    assert "ε is the claim of a run's ledger, at δ = 1e-05." in table.note
    assert "ε is" not in standings(found, EVAL).note
    assert as_csv(private).splitlines()[1].split(",")[-5:-3] == ["9.8", "image"]


def test_the_round_of_the_measured_model_is_given_once_if_all_seeds_agree(compared):
    _, found = compared
    table = standings(found, EVAL)
    assert [row[table.columns.index("round")] for row in table.rows] == ["2", "2"]


def test_an_entry_is_short_when_printed(compared):
    assert len(repr(compared[1][0])) < 400


def test_a_second_time_nothing_is_trained_or_measured(compared, monkeypatch):
    folder, before = compared
    for name in ("start_run", "resume", "evaluate_stored"):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("did it again"))
    again = entries([str(folder / "both.toml")], {"workers": 2, "grids": 1})  # what changes no bit does not count
    compare(again, [0, 1], folder / "out", EVAL, lambda *_: Callback())
    assert [e.found for e in again] == [e.found for e in before]


def test_only_selected_runs_are_trained_and_the_others_stay_in_the_table(compared, tmp_path):
    folder, before = compared
    file, fails = str(folder / "both.toml"), lambda *_: pytest.fail("trained")
    some = entries([file], {}, before[1].name)
    assert [e.wanted for e in some] == [False, True]
    compare(some, [0, 1], folder / "out", EVAL, fails)
    assert [e.found for e in some] == [e.found for e in before]
    shutil.copytree(before[1].runs[0], tmp_path / "out" / before[1].runs[0].parent.name / "seed-0")
    some = entries([file], {}, before[1].name)
    compare(some, [0], tmp_path / "out", EVAL, fails)
    assert [len(e.runs) for e in some] == [0, 1], "the first is neither wanted nor there"
    others = entries([file], {"rounds": 3}, before[1].name)
    with pytest.raises(VitrailError, match=f"{before[1].runs[0].parent.name}/seed-0 was run with another rounds"):
        compare(others, [0], folder / "out", EVAL, fails)


def test_other_settings_in_the_same_folder_are_refused_and_nothing_is_lost(compared):
    folder, _ = compared
    changed = entries([str(folder / "both.toml")], {"rounds": 3})
    with pytest.raises(VitrailError, match="was run with another rounds; give another --out"):
        compare(changed, [0], folder / "out", EVAL, lambda *_: Callback())
    assert len(RunDir(folder / "out" / "sync-d-g" / "seed-0").rows()) == 2


@pytest.mark.parametrize(
    ("how", "settings", "message"),
    [
        (EvalConfig(families=("fidd",)), {}, "did you mean fid"),
        (EvalConfig(best=True), {"eval_every": 0}, "stores no best round"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_trained(how, settings, message, file, tmp_path):
    with pytest.raises(VitrailError, match=message):
        compare(entries([file], settings), [0], tmp_path / "out", how, lambda *_: pytest.fail("trained"))
    assert not (tmp_path / "out").exists()


def test_the_best_round_is_refused_where_epsilon_is_proven(tmp_path):
    proven = entries(["prism"], {"data": "digits", "privacy": "mask-update", "epsilon": 5})
    with pytest.raises(VitrailError, match="a private run stores no best round"):
        check(proven, [], tmp_path, EvalConfig(best=True))
    check(entries(["prism"], {"data": "digits", "privacy": "paper", "epsilon": 5}), [], tmp_path, EvalConfig(best=True))


def test_all_runs_are_measured_by_one_network_that_none_was_trained_against(file, tmp_path):
    def feature_network(features):
        found = [*entries([file], {}), *entries(["prism"], {"data": "digits", "features": features})]
        return check(found, [], tmp_path, EvalConfig())

    assert feature_network("auto") == feature_network("vitrail-fashion") == {"digits": "vitrail-cifar"}
    assert feature_network("vitrail-cifar") == {"digits": "vitrail-fashion"}
    both = [*entries(["prism"], {"features": "vitrail-cifar"}), *entries(["prism"], {"features": "vitrail-fashion"})]
    with pytest.raises(VitrailError, match="use fid"):
        check(both, [], tmp_path, EvalConfig())


def test_the_settings_of_a_finished_run_can_be_compared_again_without_its_seed(compared):
    _, found = compared
    (again,) = entries([str(RunDir(found[1].runs[1]).settings)], {})
    assert (again.settings.seed, again.settings.out) == (0, "")
    with pytest.raises(VitrailError, match="seed is set by the comparison"):
        entries(["prism"], {"seed": 3})


def test_one_failing_run_does_not_stop_the_others(tmp_path):
    (tmp_path / "x.toml").write_text(FILE.replace('sync = "g"', 'partition = "attribute:Smiling"'))
    found = entries([str(tmp_path / "x.toml")], {})
    compare(found, [0], tmp_path / "out", EVAL, lambda *_: Callback())
    assert (len(found[0].runs), len(found[1].runs)) == (1, 0)
    assert found[1].failed
    assert standings(found, EVAL).rows[1][2] == "failed"


def test_a_killed_comparison_continues_and_gives_the_same_models(compared, tmp_path):
    folder, found = compared
    words = [
        sys.executable,
        "-m",
        "vitrail.cli.main",
        "compare",
        str(folder / "both.toml"),
        "-o",
        str(tmp_path / "out"),
    ]
    words += ["-n", "100", "--metrics", "fd-vitrail", "--seeds", "1"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    second = tmp_path / "out" / "sync-g" / "seed-0" / "checkpoint.safetensors"
    while not second.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "compare.html" in done.stdout
    assert "vitrail sample" not in done.stdout
    for e in found:
        for run in e.runs[:1]:
            there = tmp_path / "out" / run.relative_to(folder / "out")
            assert (there / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
    assert (tmp_path / "out" / "compare.html").read_text().startswith("<!DOCTYPE html>")
    assert len((tmp_path / "out" / "compare.md").read_text().splitlines()) > 4
    stored = json.loads((tmp_path / "out" / "sync-g" / "seed-0.json").read_text())
    assert stored["columns"][0]["asked"]["n"] == 100
