"""Small runs that separate content and style, trained once for all tests here."""

from __future__ import annotations

from pathlib import Path

import pytest

import vitrail
from vitrail.analysis.trained import LoadedRun, load_run

SMALL = {"data": "digits", "size": 8, "width": 4, "latent_dim": 8, "style_depth": 2, "rounds": 2, "workers": 1}
SMALL |= {"eval_every": 0, "grids": 0}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("analysis") / "run"
    vitrail.train("padpaf", **SMALL, partition="domains:invert,blur,zoom-out", labels="ignore", out=str(out))
    return out


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("analysis") / "labelled"
    vitrail.train("padpaf", **SMALL, partition="domains:invert,blur:0.5", out=str(out))
    return out


@pytest.fixture(scope="session")
def run(folder: Path) -> LoadedRun:
    return load_run(folder)
