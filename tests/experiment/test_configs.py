"""The settings files that come with the project."""

from pathlib import Path

import pytest

from vitrail.experiment.compare import entries
from vitrail.experiment.settings import build_method
from vitrail.methods.base import Task

CONFIGS = sorted(Path(__file__).parents[2].joinpath("configs").rglob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_run_of_every_file_can_be_built(path):
    found = entries([str(path)], {})
    assert len(found) > 1
    for entry in found:
        s = entry.settings.model_copy(update={"features": "vgg19"} if hasattr(entry.settings, "features") else {})
        assert build_method(s, Task((3, 64, 64), 10, s.rounds, s.clients)).reply_spec()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_file_names_the_command_that_runs_it(path):
    where = path.relative_to(Path(__file__).parents[2])
    assert f"vitrail compare {where}" in path.read_text()
