"""A SuperNode that runs no code it is sent: `flwr run` ships an app to every node, and this one leaves it unopened.

Flower starts a process for each task by a command's name (`flwr-clientapp`). `vitrail supernode` puts commands of its
own before those on the path: the ClientApp is always that of the vitrail installed here, and every other kind of task
is refused. Of the app that was shipped, only its config is read, as TOML.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vitrail.utils.errors import VitrailError
from vitrail.utils.paths import data_home

KNOWN = "1.41."  # of Flower
_REPLACED = ("install_from_fab", "get_load_client_app_fn")  # what Flower opens and loads a shipped app with
_REFUSED = {
    "--isolation": "tasks would be started by a process that this one does not know",
    "--allow-runtime-dependency-installation": "it installs what a shipped app asks for",
}


def start(arguments: Sequence[str]) -> None:
    """Become a SuperNode with these arguments of flower-supernode."""
    for option, why in _REFUSED.items():
        if any(len(a) > 3 and option.startswith(a.partition("=")[0]) for a in arguments):  # options may be cut short
            raise VitrailError(f"{option}: {why}; leave it out, or use flower-supernode itself")
    replaced()  # a Flower that cannot be kept from running other code shows here
    path = os.pathsep.join([str(commands()), str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path}
    command = Path(sys.executable).parent / "flower-supernode"
    os.execve(command, [str(command), *arguments], environment)  # noqa: S606


def commands() -> Path:
    """A folder with a command for every kind of task that Flower knows, each ending in `main` below."""
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

    folder = data_home() / "own-code"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.name == "posix" and folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise VitrailError("the folder of this node's commands may be written by others than its owner: chmod 700 it")
    for name in TASK_TYPE_TO_COMMAND.values():
        text = f"#!{sys.executable} -P\nfrom vitrail.engines.flower.own_code import main\n\nmain({name!r})\n"
        part = folder / f".{name}.{os.getpid()}"
        part.write_text(text)
        part.chmod(0o700)
        part.replace(folder / name)
    return folder


def main(command: str) -> None:
    """What runs in place of one of Flower's commands."""
    if command != "flwr-clientapp":
        sys.exit(f"{command}: refused; this node answers runs of vitrail alone")
    module = replaced()
    setattr(module, _REPLACED[0], lambda *_, **__: None)
    setattr(module, _REPLACED[1], lambda *_, **__: _own)
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp

    flwr_clientapp()


def _own(*_: str) -> Any:
    """The ClientApp of this installation; imported once Flower has said that the task is taken, which it must soon."""
    from vitrail.engines.flower.client import app

    return app


def replaced() -> Any:
    """The module of Flower's that runs a ClientApp, if it is as we know it; with another we start nothing."""
    from flwr.supernode.runtime import run_clientapp as module

    found = version("flwr")
    if not found.startswith(KNOWN) or not all(hasattr(module, name) for name in _REPLACED):
        raise VitrailError(
            f"flwr {found}: only {KNOWN}x is known to load a ClientApp where this node can keep it from doing so; "
            "install the version in constraints.txt"
        )
    return module
