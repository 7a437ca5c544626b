"""The VAE example: at most 60 lines of code, trains, and works with every command that a built-in method works with."""

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import vitrail
from vitrail.testing import check_method, same
from vitrail.utils.errors import VitrailError
from vitrail.utils.state import load

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {"data": "digits", "size": 8, "clients": 3, "eval_every": 0, "grids": 0}


@pytest.fixture(scope="module")
def example():
    sys.path.insert(0, str(EXAMPLES))
    yield importlib.import_module("fedavg_vae")
    sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def run(example, tmp_path_factory):
    out = tmp_path_factory.mktemp("vae") / "run"
    return vitrail.train(example.FedAvgVae(lr=2e-3), **SMALL, rounds=3, workers=1, out=str(out))


def test_the_example_has_at_most_60_lines_of_code():
    lines = (EXAMPLES / "fedavg_vae.py").read_text().splitlines()
    assert ast.get_docstring(ast.parse("\n".join(lines)))
    assert len([line for line in lines[1:] if line.strip() and not line.startswith("#")]) <= 60


def test_the_loss_falls_and_samples_are_written(run):
    losses = [row["loss"] for row in run.rows]
    assert losses[-1] < 0.9 * losses[0]
    assert losses[0] > losses[1] > losses[2]
    assert (run.folder / "samples.png").exists()
    assert (run.folder / "report.html").exists()
    assert run.generator.sample(5).shape == (5, 1, 8, 8)


def test_class_instance_and_name_train_the_same_model(example, run, tmp_path):
    for k, (method, more) in enumerate([(example.FedAvgVae, {"lr": 2e-3}), ("fedavg-vae", {"lr": 2e-3})]):
        again = vitrail.train(method, **more, **SMALL, rounds=3, workers=1, out=str(tmp_path / str(k)))
        assert again.generator.sample(9).equal(run.generator.sample(9))


def test_worker_processes_give_the_same_bits(example, run, tmp_path):
    two = vitrail.train(example.FedAvgVae, lr=2e-3, **SMALL, rounds=3, workers=2, out=str(tmp_path / "two"))
    first, second = (load(r.folder / "checkpoint.safetensors")["federation"] for r in (run, two))
    assert same(first, second)


def test_an_interrupted_run_is_resumed(example, run, tmp_path):
    class Stop(vitrail.Callback):
        def on_round_end(self, result, row):
            if result.round == 1:
                raise KeyboardInterrupt

    out = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        vitrail.train(example.FedAvgVae, lr=2e-3, **SMALL, rounds=3, workers=1, callbacks=[Stop()], out=str(out))
    assert torch.equal(vitrail.resume(out).generator.sample(9), run.generator.sample(9))


def test_it_is_evaluated(run):
    names = [m.name for m in vitrail.evaluate(run, metrics=["fd-vitrail"], n=300)]
    assert "fd-vitrail" in names


def test_it_passes_the_conformance_checks(example):
    check_method(example.FedAvgVae, width=4)


def test_the_command_line_knows_it_by_vitrail_plugins(run, tmp_path):
    environment = {**os.environ, "VITRAIL_PLUGINS": "fedavg_vae", "PYTHONPATH": f"{EXAMPLES}:{os.environ['PYTHONPATH']}"
                   if os.environ.get("PYTHONPATH") else str(EXAMPLES)}  # fmt: skip

    def command(*words):
        code = "import sys; from vitrail.cli.main import main; main()"
        done = subprocess.run([sys.executable, "-c", code, *words], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "fedavg-vae" in command("list")
    assert "latent_dim=16" in command("list", "fedavg-vae")
    command(
        "run", "fedavg-vae", "data=digits", "clients=2", "rounds=1", "workers=2", "grids=0", f"out={tmp_path / 'x'}"
    )
    command("sample", str(run.folder), "-n", "4", "-o", str(tmp_path / "grid.png"))
    assert (tmp_path / "grid.png").exists()


def test_without_its_module_a_run_is_refused_with_the_remedy(run):
    code = f"import vitrail; vitrail.resume({str(run.folder)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "not a method" in done.stderr
    assert "VITRAIL_PLUGINS" in done.stderr


def test_engine_flower_is_refused_without_vitrail_plugins(example, tmp_path, monkeypatch):
    monkeypatch.delenv("VITRAIL_PLUGINS", raising=False)
    with pytest.raises(VitrailError, match=r"Flower's processes do not know method fedavg-vae.*VITRAIL_PLUGINS"):
        vitrail.train(example.FedAvgVae, **SMALL, engine="flower", out=str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_the_tutorial_shows_the_example_line_by_line():
    page = (EXAMPLES.parent / "docs" / "tutorials" / "own-method.md").read_text()
    shown = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    code = (EXAMPLES / "fedavg_vae.py").read_text().partition('if __name__ == "__main__"')[0].splitlines()[2:]
    assert [line for line in code if line.strip() and line not in shown] == []
