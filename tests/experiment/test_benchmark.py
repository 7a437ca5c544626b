"""The benchmark: a method ranked as published private generators are."""

import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import vitrail
from tests.federation import QUICK, digits
from vitrail.cli.main import app
from vitrail.experiment.benchmark import PublishedResult, Result, benchmark, benchmark_images, published, run_name
from vitrail.methods.registry import METHODS
from vitrail.metrics.measure import Measure
from vitrail.report.benchmark_tables import benchmark_csv, benchmark_table, detail_table
from vitrail.utils.errors import VitrailError

SMALL = {"size": 8, "clients": 2, "rounds": 2, "local_steps": 2, "workers": 1}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("benchmark")
    return out, benchmark("moments", "digits", [1.0, None], [0], out, "quick", SMALL)


def test_each_epsilon_is_trained_and_measured(done):
    out, (private, plain) = done
    assert (private.epsilon, plain.epsilon) == (1.0, None)
    ledger = json.loads((out / run_name(1.0, 0) / "ledger.json").read_text())
    assert ledger[0]["epsilon"] == pytest.approx(1.0, abs=1e-4)
    assert private.measures[0].name == "accuracy"
    assert private.measures[0].n_real == len(digits().test)
    assert private.public == "vitrail-fashion"
    assert private.cpu_seconds > 0
    rows = vitrail.load(out / run_name(1.0, 0)) and (out / run_name(1.0, 0) / "metrics.jsonl").read_text().splitlines()
    assert private.bytes_up == sum(json.loads(row)["bytes_up"] for row in rows) / 2


def test_what_is_finished_is_not_repeated(done, monkeypatch):
    out, first = done
    monkeypatch.setattr("vitrail.experiment.benchmark.start_run", None)
    monkeypatch.setattr("vitrail.experiment.benchmark.measure_images", None)
    assert benchmark("moments", "digits", [1.0, None], [0], out, "quick", SMALL) == first


def test_a_model_that_changed_is_measured_again(done, monkeypatch):
    out, _ = done
    file = out / f"{run_name(None, 0)}.json"
    text = file.read_text()
    file.write_text(text.replace(json.loads(text)["model"], "other"))
    monkeypatch.setattr("vitrail.experiment.benchmark.measure_images", lambda *_: [])
    assert benchmark("moments", "digits", [None], [0], out, "quick", SMALL)[0].measures == []
    file.write_text(text)


def test_settings_of_the_benchmark_itself_are_refused_before_training(tmp_path):
    with pytest.raises(VitrailError, match="epsilon is set by the benchmark"):
        benchmark("moments", "digits", [1.0], [0], tmp_path, "quick", {**SMALL, "epsilon": 2})
    with pytest.raises(VitrailError, match="rounds = 0"):
        benchmark("moments", "digits", [1.0], [0], tmp_path, "quick", {**SMALL, "rounds": 0})
    assert not list(tmp_path.iterdir())


def test_an_epsilon_that_the_ledger_does_not_prove_is_refused(tmp_path):
    how = {"size": 8, "clients": 2, "rounds": 1, "local_steps": 1, "workers": 1}
    with pytest.raises(VitrailError, match="privacy=none adds no noise"):
        benchmark(
            "fedgan", "digits", [1.0], [0], tmp_path, "quick", {"size": 8, "clients": 2, "rounds": 1, "workers": 1}
        )
    with pytest.raises(VitrailError, match=r"ε = 9 is not proven; the ledger states: .*\. Change privacy="):
        benchmark("prism", "digits", [9.0], [0], tmp_path, "quick", {**how, "privacy": "paper"})


def test_a_method_without_a_mechanism_is_measured_without_noise(tmp_path):
    small = {**SMALL, **QUICK["mdgan"], "rounds": 1}
    del small["local_steps"]
    (found,) = benchmark("mdgan", "digits", [None], [0], tmp_path, "quick", small)
    assert (found.epsilon, found.title, found.measures[0].name) == (None, "no noise", "accuracy")
    with pytest.raises(VitrailError, match="mdgan has no privacy mechanism; use --epsilon none"):
        benchmark("mdgan", "digits", [1.0], [0], tmp_path, "quick", small)


@pytest.fixture
def own_method(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    name = METHODS.name_of(import_module("fedavg_vae").FedAvgVae)
    yield name
    METHODS._added.pop(name)  # workers of other tests cannot import it
    del sys.modules["fedavg_vae"]


def test_a_registered_method_without_privacy_settings_is_measured(tmp_path, own_method):
    name = own_method
    (found,) = benchmark(
        name, "digits", [None], [0], tmp_path, "quick", {"size": 8, "clients": 2, "rounds": 1, "workers": 1}
    )
    assert found.measures[0].n_fake == 2000
    with pytest.raises(VitrailError, match=f"{name} has no privacy mechanism"):
        benchmark(name, "digits", [1.0], [0], tmp_path, "quick")


def test_what_cannot_be_trained_or_measured_is_refused_before_the_first_run(tmp_path, monkeypatch):
    monkeypatch.setattr("vitrail.experiment.benchmark.start_run", None)
    how = {"size": 8, "clients": 2, "rounds": 1, "workers": 1}
    np.savez(tmp_path / "plain.npz", images=digits().train.pixels[:100, 0])
    for method, data, epsilons, reason in (
        ("fedavg", "digits", [None], "fedavg trains no generator"),
        ("prism", "digits", [None, 2.0], "privacy=none adds no noise"),
        ("moments", "digits", [None, 1e-9], "epsilon=1e-09 is too small"),
        ("moments", f"npz:{tmp_path}/plain.npz", [None], "the benchmark needs labels of two classes or more"),
    ):
        with pytest.raises(VitrailError, match=reason):
            benchmark(method, data, epsilons, [0, 1], tmp_path / "out", "quick", how)
    with pytest.raises(VitrailError, match="labels=ignore: the benchmark needs labels"):
        benchmark("moments", "digits", [None], [0], tmp_path / "out", "quick", {**how, "labels": "ignore"})
    assert not (tmp_path / "out").exists()


def test_a_folder_of_other_settings_is_refused(done):
    out, _ = done
    with pytest.raises(VitrailError, match="was run with another rounds; give another --out"):
        benchmark("moments", "digits", [1.0], [0], out, "quick", {**SMALL, "rounds": 3})


def test_images_from_elsewhere_are_measured_alike(tmp_path):
    train = digits().train
    np.savez(tmp_path / "given.npz", images=train.pixels[:, 0], labels=train.labels)
    result = benchmark_images(f"npz:{tmp_path}/given.npz", "digits", "quick", size=8)
    assert result.measures[0].value > 0.5
    assert result.bytes_up is None
    detail, *lines = detail_table([result]).columns, *benchmark_csv([result]).splitlines()
    assert detail == ["measure", "given images"]
    assert lines[0] == "run,measure,by,value,low,high,n_real,n_fake,note"
    assert all(line.startswith("given-images,accuracy") for line in lines[1:])


def test_images_from_elsewhere_need_the_kind_of_their_source():
    with pytest.raises(VitrailError, match=r"--images g.npz: write npz:g.npz or folder:PATH"):
        benchmark_images("g.npz", "digits", "quick", size=8)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["siz=8"], "siz = 8: not a setting; did you mean size"),
        (["size=7"], "size = 7: must be at least 8"),
        (["size=8", "rounds=3"], "rounds= has no effect with --images"),
        (["--method", "moments"], "--method has no effect with --images"),
        (["--epsilon", "1"], "--epsilon has no effect with --images"),
        (["--seeds", "2"], "--seeds has no effect with --images"),
    ],
)
def test_what_has_no_effect_on_given_images_is_refused(tmp_path, words, reason):
    given = ["benchmark", "digits", "--images", "npz:/nowhere.npz", "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*given, *words])
    assert isinstance(done.exception, VitrailError)
    assert reason in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_the_command_writes_a_page_about_given_images(tmp_path):
    train = digits().train
    np.savez(tmp_path / "given.npz", images=train.pixels[:400, 0], labels=train.labels[:400])
    words = ["benchmark", "digits", "size=8", "--images", f"npz:{tmp_path}/given.npz", "--preset", "quick"]
    done = CliRunner().invoke(app, [*words, "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "given images" in (page := (tmp_path / "out/benchmark.html").read_text())
    assert "<table" in page
    assert "benchmark.html" in done.output
    assert "no noise" not in done.output + page
    assert "360 of 400 generated images (cnn 200 steps); the other 40 chose it" in " ".join(done.output.split())
    assert "% correct on the generated images that were set aside" in done.output


def test_the_table_has_published_rows_of_this_data_and_means_over_seeds():
    def result(epsilon, seed, value):
        accuracy = Measure("accuracy", value, value, value, 100, 50, "higher", "classifiers")
        return Result(epsilon, seed, [accuracy], 2e6, 5000, 90.0, "vgg19")

    others = [PublishedResult("A", True, {"mnist": {"1": 95.5}}), PublishedResult("B", False, {"cifar10": {"1": 30}})]
    table = benchmark_table("moments", "mnist", [result(1.0, 0, 0.97), result(1.0, 1, 0.99)], others, "SOURCE", "quick")
    assert table.columns == ["method", "accuracy %, ε = 1", "up per client", "model", "CPU minutes"]
    assert table.rows == [["A*", "95.5", "", "", ""], ["moments* (here)", "98.0 ± 1.4", "2.0 MB", "5.0 kB", "2"]]
    assert "SOURCE" in table.note
    assert "2 seeds" in table.note
    assert "45 of 50 generated images" in table.note
    short = Result(None, 0, [], 1.0, 1, 20.0)
    short.measures = result(None, 0, 0.5).measures
    assert benchmark_table("moments", "x", [short], [], "", "quick").rows[0][-1] == "<1"
    lines = benchmark_csv([result(1.0, 0, 0.97)]).splitlines()
    assert len(lines) == 1 + 1 + 3
    assert lines[1].startswith("epsilon-1-seed-0,1.0,0,accuracy,classifiers,0.97")


def test_published_results_are_percentages_and_name_their_source():
    rows, source = published()
    values = [v for r in rows for by_data in (r.accuracy, r.fid) for by_e in by_data.values() for v in by_e.values()]
    assert len(values) > 40
    assert all(1 < v <= 100 for v in values)
    assert "DPImageBench" in source
    assert {e for r in rows for by_e in r.accuracy.values() for e in by_e} == {"1", "10"}


def test_the_command_prints_the_table_and_writes_it(done, tmp_path):

    out, _ = done
    words = [f"{k}={v}" for k, v in SMALL.items()]
    how = ["--epsilon", "1,none", "--preset", "quick", "-o", str(out)]
    found = CliRunner().invoke(app, ["benchmark", "digits", *words, *how])
    assert found.exit_code == 0, found.output
    assert "vitrail sample" not in found.output
    assert "moments* (here)" in (out / "benchmark.md").read_text()
    assert "<table" in (out / "benchmark.html").read_text()
    with pytest.raises(VitrailError, match="--epsilon 0: give positive numbers"):
        CliRunner().invoke(app, ["benchmark", "digits", "--epsilon", "0"], catch_exceptions=False)
