"""A SuperNode that runs no shipped code; test_sites_owners.py runs it as a process."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND
from flwr.supernode.runtime import run_clientapp

from vitrail.experiment.deployment import supernode
from vitrail.experiment.deployment.client_app import app
from vitrail.utils.errors import VitrailError


@pytest.mark.parametrize(
    "words",
    [
        ["--isolation", "process"],
        ["--isolation=process"],
        ["--isol", "process"],
        ["--allow-runtime-dependency-installation"],
    ],
)
def test_options_that_would_let_other_code_run_are_refused(words):
    with pytest.raises(VitrailError, match="remove it"):
        supernode.start(["--superlink", "127.0.0.1:1", *words])


def test_every_kind_of_task_has_a_command_and_only_one_is_allowed(monkeypatch, tmp_path):
    monkeypatch.setenv("VITRAIL_HOME", str(tmp_path))
    folder = supernode.commands()
    assert {p.name for p in folder.iterdir()} == set(TASK_TYPE_TO_COMMAND.values())
    assert all(p.stat().st_mode & 0o777 == 0o700 for p in (folder, *folder.iterdir()))
    for name in ("flwr-agentapp", "flwr-serverapp"):
        done = subprocess.run([folder / name, "--token", "x"], capture_output=True, text=True)
        assert done.returncode == 1
        assert "answers only runs of vitrail" in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_a_folder_of_commands_writable_by_others_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("VITRAIL_HOME", str(tmp_path))
    supernode.commands().chmod(0o777)
    with pytest.raises(VitrailError, match="chmod 700"):
        supernode.commands()


def test_the_client_app_is_always_that_of_this_installation(monkeypatch):
    started = []
    for name in supernode._REPLACED:
        monkeypatch.setattr(run_clientapp, name, getattr(run_clientapp, name))  # restored at the end
    command = importlib.import_module("flwr.supernode.cli.flwr_clientapp")
    monkeypatch.setattr(command, "flwr_clientapp", lambda: started.append(True))
    supernode.main("flwr-clientapp")
    assert started
    assert run_clientapp.install_from_fab(b"a zip file that would be unpacked", skip_prompt=True) is None
    load = run_clientapp.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    assert load("another/foreign", "1.0.0", "0" * 64) is app


def test_another_version_of_flower_is_refused(monkeypatch):
    monkeypatch.setattr(supernode, "version", lambda _: "1.99.0")
    with pytest.raises(VitrailError, match=r"flwr 1\.99\.0"):
        supernode.start([])


def test_the_command_passes_its_arguments_to_flower(tmp_path):
    command = [sys.executable, "-m", "vitrail.cli.main", "supernode", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"VITRAIL_HOME": str(tmp_path)})
    assert "1.41" in done.stdout + done.stderr
