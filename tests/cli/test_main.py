"""The command line, as users run it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from vitrail.cli.listing import TOPICS
from vitrail.cli.main import GROUPS, app, main

TINY = ["data=digits", "size=8", "clients=3", "local_steps=1", "batch_size=10", "workers=1"]


def vitrail(*words, **more):
    return subprocess.run(
        [sys.executable, "-m", "vitrail.cli.main", *words], capture_output=True, text=True, timeout=120, **more
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    done = vitrail("run", "prism", *TINY, "rounds=2", f"out={folder}")
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_help_does_not_import_what_is_slow():
    code = "import sys; sys.argv = ['vitrail', '--help']\nimport vitrail.cli.main\ntry: vitrail.cli.main.main()\nexcept SystemExit: pass\n"
    code += "print('SLOW', [m for m in ('torch', 'numpy', 'pydantic', 'matplotlib', 'datasets') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout
    assert "SLOW []" in out
    assert "resume" in out


def test_a_run_reports_rounds_bytes_and_where_things_are(run):
    folder, output = run
    assert "round 2: 3/3 clients" in output
    assert "  up " in output
    assert "  down " in output
    assert all(line.count("so far") == 1 for line in output.splitlines() if line.startswith("round "))
    assert "more images: vitrail sample" in output
    assert "not private" in output
    assert "model.safetensors" in output.replace("\n", "")
    assert (folder / "model.safetensors").exists()


def test_rounds_of_the_server_alone_are_printed_without_bytes(tmp_path):
    output = vitrail("run", "moments", *TINY, "clients=1", "rounds=3", f"out={tmp_path / 'run'}").stdout
    assert ": 1 client (iid)" in output
    assert "done: 3 rounds, 1 client\n" in output
    first, *others = (line for line in output.splitlines() if line.startswith("round "))
    assert "clients    up" not in first
    assert "1/1 clients" in first
    assert " up " in first
    assert len(others) == 2
    assert all("server only" in line and " up " not in line for line in others)
    assert "3 rounds, seed 0, a client replies in at most 1 round" in " ".join(output.split())


def test_samples_are_a_grid_or_arrays(run, tmp_path):
    folder, _ = run
    assert vitrail("sample", str(folder), "-n", "9", "-o", str(tmp_path / "g.png")).returncode == 0
    assert Image.open(tmp_path / "g.png").size[0] > 50
    assert vitrail("sample", str(folder), "-n", "9", "--label", "7", "-o", str(tmp_path / "s.npz")).returncode == 0
    with np.load(tmp_path / "s.npz") as arrays:
        assert arrays["images"].shape == (9, 8, 8, 1)
        assert arrays["labels"].tolist() == [7] * 9


def test_a_model_whose_training_diverged_is_not_sampled(tmp_path):
    import torch

    from vitrail.models.model import Model
    from vitrail.models.model_file import save_model
    from vitrail.nets.dcgan import DcganGenerator

    weights = DcganGenerator((1, 8, 8), 0, 4, 8).state_dict()
    weights = {k: v * torch.nan if v.is_floating_point() else v for k, v in weights.items()}
    tree = {"shape": [1, 8, 8], "classes": 0, "width": 4, "z": 8, "weights": weights}
    save_model(tmp_path / "nan.safetensors", Model("dcgan", tree), [], {})
    done = vitrail("sample", str(tmp_path / "nan.safetensors"), "-o", str(tmp_path / "g.png"))
    assert (done.returncode, (tmp_path / "g.png").exists()) == (2, False)
    assert "its training diverged" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "prsm"], "did you mean prism?"),
        (["run", "prism", "clients"], "key=value"),
        (["resume", "nowhere"], "is not the folder of a run"),
        (["sample", "nowhere"], "no model at"),
        (["run", "prism", "data=npz:/nowhere.npz"], "nowhere.npz"),
        (["evaluate", "nowhere"], "no model at"),
        (["report", "nowhere"], "nowhere"),
        (["compare", "nowhere.toml"], "cannot read nowhere.toml"),
        (["compare", "rounds=3"], "nothing to compare"),
        (["compare", "prism", "--seeds", "many"], "--seeds many"),
    ],
)
def test_errors_are_messages_with_remedies_not_tracebacks(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["vitrail", *words])
    with pytest.raises(SystemExit) as stopped:  # an error of another kind would be raised as it is
        main()
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_evaluation_is_printed_stored_and_in_the_report(run):
    folder, _ = run
    done = vitrail("evaluate", str(folder), "-n", "60", "--metrics", "fd-vitrail,pixels", "--best", "--ensemble")
    assert done.returncode == 0, done.stderr
    for word in (
        "fd-vitrail",
        "by vitrail-cifar",
        "stored model",
        "best round",
        "mask ensemble",
        "ssim",
        "95% intervals",
    ):
        assert word in done.stdout.replace("\n", " ")
    stored = json.loads((folder / "evaluation.json").read_text())
    assert [c["file"] for c in stored["columns"]] == [f"{n}.safetensors" for n in ("model", "best", "ensemble")]
    assert "fd-vitrail" in (folder / "report.html").read_text()


def test_a_report_of_a_run_or_of_two(run, tmp_path):
    folder, output = run
    assert "report.html" in output.replace("\n", "")
    assert vitrail("report", str(folder), "-o", str(tmp_path / "one.html")).returncode == 0
    assert "<!DOCTYPE html>" in (tmp_path / "one.html").read_text()


def test_sampling_refuses_what_it_cannot_do(run, tmp_path):
    folder, _ = run
    assert "ends in .png" in vitrail("sample", str(folder), "-o", str(tmp_path / "x.gif")).stderr
    assert "not known" in vitrail("sample", str(folder), "--label", "cat", "-o", str(tmp_path / "x.png")).stderr
    assert "0 to 9" in vitrail("sample", str(folder), "--label", "12", "-o", str(tmp_path / "x.png")).stderr


def test_a_place_that_cannot_be_written_is_a_message(run, tmp_path):
    for words in (["sample", str(run[0]), "-o", "/nowhere/a.npz"], ["sample", str(run[0]), "-o", "/nowhere/a.png"]):
        done = vitrail(*words)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert "/nowhere" in done.stderr


def test_list_names_every_method_source_partition_and_setting():
    from vitrail.data import PARTITIONS, SOURCES
    from vitrail.methods import METHODS

    output = vitrail("list", env={**os.environ, "COLUMNS": "200"}).stdout
    assert all(name in output for name in (*METHODS, *SOURCES, *PARTITIONS))
    settings = vitrail("list", "fedgan", env={**os.environ, "COLUMNS": "200"}).stdout
    assert "sync=d&g" in settings
    assert "init_from=" in settings


def test_ctrl_c_leaves_a_resumable_run_and_prints_the_command(tmp_path):
    folder = tmp_path / "run"
    words = [sys.executable, "-m", "vitrail.cli.main", "run", "prism", *TINY, "rounds=400", f"out={folder}"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (folder / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"vitrail resume {folder}" in err
    assert "Traceback" not in err


def test_a_partition_can_be_drawn_without_training(tmp_path):
    out = tmp_path / "p.png"
    done = vitrail("partition", str(out), "data=digits", "size=8", "clients=5", "partition=classes:2")
    assert done.returncode == 0, done.stderr
    assert Image.open(out).size[0] > 100
    assert [p.name for p in Path(tmp_path).iterdir()] == ["p.png"]


COMMANDS = [name for commands in GROUPS.values() for name in commands]


def test_the_overview_shows_every_command_in_its_group():
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120"}).output
    assert all(f"─ {group} ─" in shown for group in GROUPS)
    assert all(f"│ {name} " in shown for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_and_option_has_one_sentence_of_help_that_is_shown(name):
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "300"}).output
    command = typer.main.get_command(app).commands[name]
    for parameter in command.params:
        assert re.fullmatch(r"[A-Z`].*\.", parameter.help, re.DOTALL), parameter.name
        first_words = parameter.help.replace("`", "")[:40]
        assert first_words in shown, parameter.name
    assert "`" not in shown  # Markdown is rendered


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["run", "prism", "--clients", "10"], "write clients=10"),
        (["run", "prism", "--batch-size=8"], "write batch_size=8"),
        (["compare", "prism", "--rounds", "3"], "write rounds=3"),
        (["privacy", "moments", "--epsilon", "2"], "write epsilon=2"),
    ],
)
def test_a_setting_written_as_an_option_is_answered_with_how_to_write_it(words, hint, tmp_path):
    done = vitrail(*words, cwd=tmp_path, env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 2
    assert hint in done.stderr


def test_settings_are_listed_by_topic_with_the_papers_values():
    shown = vitrail("list", "prism", env={**os.environ, "COLUMNS": "200"}).stdout
    topics = [line.strip() for line in shown.splitlines() if line.strip() in (*TOPICS, "training")]
    assert topics == ["data", "rounds", "networks", "training", "privacy", "communication", "run"]
    assert "paper: 64" in next(line for line in shown.splitlines() if line.startswith("batch_size="))
    assert next(line for line in shown.splitlines() if line.startswith("klms_bits=")).split()[-1] == "ours"
    code = next(line for line in shown.splitlines() if line.startswith("theta_clamp="))
    assert code.rstrip().endswith("published code: 0.01")
    assert "ours: not in the paper" in shown
