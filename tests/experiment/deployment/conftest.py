"""A small planned run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.federation import QUICK
from vitrail.experiment import settings as config
from vitrail.experiment.plan import prepare


@pytest.fixture
def plan(tmp_path: Path):
    settings = {**QUICK["prism"], "data": "digits", "size": 8, "clients": 3, "rounds": 2, "out": str(tmp_path / "run")}
    return prepare(config.resolve("prism", settings))
