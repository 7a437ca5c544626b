"""A finished private run, trained once and copied for each test that changes it."""

import shutil
from types import SimpleNamespace

import pytest

import vitrail
from tests.privacy.ledgers import MOMENTS


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    return vitrail.train("moments", out=str(tmp_path_factory.mktemp("finished") / "run"), **MOMENTS).folder


@pytest.fixture
def run(finished, tmp_path):
    return SimpleNamespace(folder=shutil.copytree(finished, tmp_path / "run"))
