"""A SuperNode that runs only the installed vitrail, not the app that `flwr run` ships to every node.

Flower starts a process for each task by a command's name (`flwr-clientapp`). `vitrail supernode` puts its own commands
first on the path: the ClientApp is always that of the installed vitrail, and every other kind of task is refused. Of
the shipped app only the config is read, as TOML.
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

SUPPORTED = "1.41."  # version of Flower
_REPLACED = ("install_from_fab", "get_load_client_app_fn")  # functions with which Flower loads a shipped app
_REFUSED = {
    "--isolation": "tasks would be started by another process, which this one does not control",
    "--allow-runtime-dependency-installation": "it installs the dependencies of a shipped app",
}


def start(arguments: Sequence[str]) -> None:
    """Replace this process by a SuperNode.

    Args:
        arguments: Arguments of flower-supernode.

    Raises:
        VitrailError: An argument would let the node run other code, or this version of Flower is not supported.
    """
    for option, why in _REFUSED.items():
        if any(len(a) > 3 and option.startswith(a.partition("=")[0]) for a in arguments):  # options may be abbreviated
            raise VitrailError(f"{option}: {why}; remove it, or use flower-supernode itself")
    flower_module()  # raises for a Flower whose loading of apps cannot be replaced
    path = os.pathsep.join([str(commands()), str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path}
    command = Path(sys.executable).parent / "flower-supernode"
    os.execve(command, [str(command), *arguments], environment)  # noqa: S606


def commands() -> Path:
    """Create a command for every kind of task of Flower, each of which calls `main`; return their folder."""
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

    folder = data_home() / "own-code"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.name == "posix" and folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise VitrailError("the folder of this node's commands is writable by other users; use chmod 700")
    for name in TASK_TYPE_TO_COMMAND.values():
        text = f"#!{sys.executable} -P\nfrom vitrail.experiment.deployment.supernode import main\n\nmain({name!r})\n"
        part = folder / f".{name}.{os.getpid()}"
        part.write_text(text)
        part.chmod(0o700)
        part.replace(folder / name)
    return folder


def main(command: str) -> None:
    """Run in place of one of Flower's commands."""
    if command != "flwr-clientapp":
        sys.exit(f"{command}: refused; this node answers only runs of vitrail")
    module = flower_module()
    setattr(module, _REPLACED[0], lambda *_, **__: None)
    setattr(module, _REPLACED[1], lambda *_, **__: _own)
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp

    flwr_clientapp()


def _own(*_: str) -> Any:
    """The ClientApp of this installation; imported after Flower has accepted the task, which must not take long."""
    from vitrail.experiment.deployment.client_app import app

    return app


def flower_module() -> Any:
    """Return the module of Flower that runs a ClientApp.

    Raises:
        VitrailError: The module is not known to have the functions that must be replaced.
    """
    from flwr.supernode.runtime import run_clientapp as module

    found = version("flwr")
    if not found.startswith(SUPPORTED) or not all(hasattr(module, name) for name in _REPLACED):
        raise VitrailError(
            f"flwr {found}: only with {SUPPORTED}x can this node prevent Flower from loading a shipped app; "
            "install the version in constraints.txt"
        )
    return module
