"""The plugin package: installed into a folder, it works with the command line and passes its own tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The environment of a process in which the plugin is installed."""
    place = tmp_path_factory.mktemp("plugin")
    source = place / "source"
    subprocess.run(["cp", "-r", str(ROOT / "examples" / "plugin"), str(source)], check=True)  # a build writes into it
    install = ["install", "-q", "--no-deps", "--no-build-isolation", "--target", str(place / "site"), str(source)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True, capture_output=True)
    path = os.pathsep.join(filter(None, [str(place / "site"), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}


def call(environment, *words):
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def vitrail(environment, *words):
    return call(environment, "-c", "from vitrail.cli.main import main; main()", *words)


def test_list_shows_its_entries(installed):
    listed = vitrail(installed, "list")
    assert all(name in listed for name in ("pixel-gaussian", "stripes", "brightness"))
    assert "temperature=1.0" in vitrail(installed, "list", "pixel-gaussian")


def test_it_is_trained_and_evaluated_with_workers(installed, tmp_path):
    out = tmp_path / "run"
    vitrail(installed, "run", "pixel-gaussian", "data=stripes:120", "size=8", "clients=3", "workers=2", f"out={out}")
    assert (out / "report.html").exists()
    assert "brightness" in vitrail(installed, "evaluate", str(out), "--metrics", "brightness", "-n", "200")


def test_its_generator_trains_with_prism(installed, tmp_path):
    words = ["generator=mlp", "data=stripes:120", "size=8", "clients=2", "rounds=1", "local_steps=2", "eval_every=0"]
    vitrail(installed, "run", "prism", *words, f"out={tmp_path / 'run'}")
    vitrail(installed, "sample", str(tmp_path / "run"), "-n", "4", "-o", str(tmp_path / "grid.png"))
    assert (tmp_path / "grid.png").exists()


def test_its_own_tests_pass(installed):
    tests = ROOT / "examples" / "plugin" / "tests"
    call(
        installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tests), "-c", os.devnull, str(tests)
    )
