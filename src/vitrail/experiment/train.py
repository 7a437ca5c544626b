"""Start and resume runs: `vitrail.train` and `vitrail.resume`."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Any

from vitrail.engines.simulation import SimulatedClients, SimulationEngine
from vitrail.experiment import settings as config
from vitrail.experiment.callbacks import Callback, build_callbacks
from vitrail.experiment.plan import Plan, prepare
from vitrail.experiment.plugins import describe_method, local_entries, name_classes
from vitrail.experiment.run_dir import Run, RunDir, new_run_dir
from vitrail.experiment.runner import Engine, run_rounds
from vitrail.experiment.settings import Settings, sets_rounds
from vitrail.experiment.validation import GIVEN
from vitrail.methods.base import BaseMethod
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.version import __version__


def train(
    method: str | type[BaseMethod] | BaseMethod,
    *,
    data: Any = None,
    progress: bool = False,
    callbacks: Sequence[Callback | str] = (),
    **settings: Any,
) -> Run:
    """Train a method on federated data, and return the finished run.

    Args:
        method: The name of a method, the path of a settings file, a class that derives from `vitrail.BaseMethod`, or
            an object of such a class.
        data: A source's name (`vitrail list`), a `vitrail.Dataset`, or a torch Dataset of images.
        progress: Show progress in the terminal, as the command line does.
        callbacks: Objects that follow the run, or names of registered callbacks.
        **settings: Any setting of `vitrail list METHOD`. Where a setting is the name of a network, such as
            `generator`, `d_architecture` or `features`, a class is accepted, too; it is registered under a name
            derived from its own.

    Returns:
        The run: its folder, settings, metrics and models.

    Raises:
        VitrailError: If the settings are wrong; all problems are reported at once, before anything is written.

    Examples:
        >>> import tempfile, vitrail
        >>> run = vitrail.train("prism", data="digits", size=8, clients=2, rounds=1, local_steps=1, workers=1,
        ...                     eval_every=0, out=tempfile.mkdtemp())
        >>> run.generator.sample(4).shape
        torch.Size([4, 1, 8, 8])
    """
    name, own = describe_method(method)
    given = name_classes([name], {**own, **settings})
    if progress:
        callbacks = ["progress", *callbacks]
    if data is not None:
        given["data"] = data if isinstance(data, str) else GIVEN
    return start_run(config.resolve(name, given), None if isinstance(data, str) else data, build_callbacks(callbacks))


def start_run(settings: Settings, data: Any = None, callback: Callback | None = None) -> Run:
    """Run resolved settings in a new folder."""
    out = Path(settings.out) if settings.out else new_run_dir(settings.method, settings.data)
    RunDir(out).check_free()
    if sets_rounds(settings):
        settings = settings.model_copy(update={"rounds": rounds_in_time(settings, data)})
    plan = prepare(settings.model_copy(update={"out": str(out)}), data)
    with plan.folder.locked():
        plan.folder.begin(config.to_toml(plan.settings, __version__))
        return run_rounds(plan, engine_for, callback or Callback())


TRIAL_ROUNDS = 4  # of which the first is not counted: libraries are imported in it, and caches filled


def rounds_in_time(settings: Settings, data: Any = None) -> int:
    """Return how many rounds take about `minutes`, from the time of a few rounds of a trial run that is deleted.

    Only the number of rounds depends on the clock; it is stored with the run's settings, so that a repeated or resumed
    run has the same schedule and the same bits.
    """
    assert settings.minutes is not None  # noqa: S101
    trial = {"minutes": None, "rounds": TRIAL_ROUNDS, "grids": 0, "eval_every": 0, "budget": None}
    with tempfile.TemporaryDirectory() as folder:
        out = {"out": str(Path(folder) / "trial"), "callbacks": "", "tensorboard": False}
        run = start_run(settings.model_copy(update={**trial, **out}), data)
    later = [row["seconds"] for row in run.rows[1:]]
    return max(1, int(60 * settings.minutes / max(median(later), 1e-3)))


def resume(
    folder: str | Path,
    *,
    data: Any = None,
    workers: int | str | None = None,
    callbacks: Sequence[Callback | str] = (),
) -> Run:
    """Continue an interrupted run; the result is identical to that of an uninterrupted one, bit by bit.

    Args:
        folder: The run's folder.
        data: The data, if the run was started with data from Python.
        workers: Number of worker processes, if it should change.
        callbacks: Objects that follow the run, or names of registered callbacks.

    Returns:
        The finished run.

    Raises:
        VitrailError: If the folder has no run, or the run was made with other data.

    Examples:
        >>> import tempfile, vitrail
        >>> class Interrupt(vitrail.Callback):
        ...     def on_round_end(self, result, row):
        ...         raise KeyboardInterrupt
        >>> folder = tempfile.mkdtemp()
        >>> try:
        ...     vitrail.train("prism", data="digits", size=8, clients=2, rounds=2, local_steps=1, workers=1,
        ...                   eval_every=0, out=folder, callbacks=[Interrupt()])
        ... except KeyboardInterrupt:
        ...     print(len(vitrail.resume(folder).rows), "rounds")
        2 rounds
    """
    run_dir = RunDir(Path(folder))
    settings = run_dir.stored_settings(out=str(folder), **({} if workers is None else {"workers": workers}))
    if run_dir.nodes.exists():
        raise VitrailError(f"{folder} is a run over nodes; continue it with `flwr run` (see docs/how-to/deploy.md)")
    plan = prepare(settings, data)
    with run_dir.locked():
        return run_rounds(plan, engine_for, build_callbacks(callbacks))


def engine_for(plan: Plan) -> AbstractContextManager[Engine]:
    """Return the engine that the settings name, with all clients on this machine."""
    s = plan.settings
    workers = min(len(plan.clients), os.cpu_count() or 1) if s.workers == "auto" else int(s.workers)
    if s.engine == "flower":
        from vitrail.experiment.deployment.virtual_nodes import simulation

        return simulation(plan, workers)
    if workers > 1 and (local := local_entries(s)):
        warnings.warn(
            f"{', '.join(local)}: defined in a script or notebook, which worker processes cannot import, so the run "
            "uses one process and only this script can read its model; move it to a module",
            stacklevel=5,
        )
        workers = 1
    indices = dict(zip(plan.partition.names, plan.partition.indices, strict=True))
    clients = SimulatedClients(plan.method, plan.id, Rng((s.seed,)), indices, plan.folder.clients, plan.budget)
    return SimulationEngine(clients, plan.data.train, workers, s.client_dropout)
