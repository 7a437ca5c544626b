"""Simpson's paradox compared with closed forms: least squares, pooled and within clients."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.slow

PATH = Path(__file__).parents[2] / "examples" / "simpson.py"


@pytest.fixture(scope="module")
def simpson():
    spec = importlib.util.spec_from_file_location("simpson", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def learned(simpson):
    return simpson.errors(0)


def within(x, y):
    """Return the least-squares fit with one slope and a bias for each client."""
    client = np.repeat(np.eye(len(x)), x.shape[1], axis=0)
    found, *_ = np.linalg.lstsq(np.column_stack([x.ravel(), client]), y.ravel(), rcond=None)
    return found[0], found[1:]


def test_the_single_model_is_the_pooled_least_squares_fit_and_falls(simpson, learned):
    x, y, *_ = (v.numpy() for v in simpson.points(0))
    found, single, _ = learned
    slope, bias = np.polyfit(x.ravel(), y.ravel(), 1)
    assert single["w"].numpy() == pytest.approx(np.full((8, 1), slope), abs=1e-6)
    assert single["b"].numpy() == pytest.approx(np.full((8, 1), bias), abs=1e-6)
    assert found["single"][0] == pytest.approx(np.mean((slope * x + bias - y) ** 2), rel=1e-6)
    assert slope < -0.5


def test_private_biases_give_the_fit_within_clients_and_a_rising_line(simpson, learned):
    x, y, *_ = (v.numpy() for v in simpson.points(0))
    *_, ours = learned
    slope, biases = within(x, y)
    assert ours["w"].numpy() == pytest.approx(np.full((8, 1), slope), abs=1e-3)
    assert ours["b"].numpy()[:, 0] == pytest.approx(biases, abs=1e-3)
    assert slope > 0.2


def test_private_biases_have_a_tenth_of_the_single_models_error(simpson, learned):
    found, *_ = learned
    assert found["private"][0] * 10 < found["single"][0]
    assert found["private"][1] < found["single"][1] / 4  # with 50 points per client there are gaps between clients
    many, *_ = simpson.errors(1, 400)
    assert all(ours * 10 < one for ours, one in zip(many["private"], many["single"], strict=True))


def test_the_example_runs_and_draws_four_panels(tmp_path):
    out = tmp_path / "figure.png"
    done = subprocess.run([sys.executable, PATH, "-o", out], capture_output=True, text=True, check=True)
    assert "one model: slope -0.9" in done.stdout
    assert "federated weight, private bias: slope 0.3" in done.stdout
    pixels = np.asarray(Image.open(out).convert("L"))
    half = np.array(pixels.shape) // 2
    parts = [p for row in (pixels[: half[0]], pixels[half[0] :]) for p in (row[:, : half[1]], row[:, half[1] :])]
    assert all((p < 200).mean() > 0.005 for p in parts)
