"""Callbacks: objects that follow a run's progress. They cannot change what a run computes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from vitrail.utils.errors import VitrailError
from vitrail.utils.registry import Registry

if TYPE_CHECKING:
    from vitrail.engines.rounds import RoundResult
    from vitrail.experiment.plan import Plan
    from vitrail.experiment.run_dir import Run


class Callback:
    """Base class of callbacks; every method does nothing by default.

    Pass objects to `vitrail.train(..., callbacks=[...])`, or register the class and name it: `callbacks=my-callback`.

    Examples:
        >>> class PrintLoss(Callback):
        ...     def on_round_end(self, result, row):
        ...         print(row["round"], row["loss"])
        >>> PrintLoss().on_round_end(None, {"round": 0, "loss": 1.5})
        0 1.5
    """

    def on_run_start(self, plan: Plan, done: int) -> None:
        """Called before the first round.

        Args:
            plan: The run: settings, data, clients and method.
            done: Number of rounds that are finished; more than 0 if the run was resumed.
        """

    def on_reply(self, result: RoundResult) -> None:
        """Called after each reply of a client.

        Args:
            result: The result of the round so far.
        """

    def on_round_end(self, result: RoundResult, row: dict[str, Any]) -> None:
        """Called after each round.

        Args:
            result: Who replied, who was excluded and why, and the bytes sent.
            row: The round's line of metrics.jsonl.
        """

    def on_run_end(self, run: Run) -> None:
        """Called when the run is finished and its files are written.

        Args:
            run: The finished run.
        """


class CallbackList(Callback):
    """Calls several callbacks in their order."""

    def __init__(self, *callbacks: Callback) -> None:
        self.callbacks = callbacks

    def on_run_start(self, plan: Plan, done: int) -> None:
        for callback in self.callbacks:
            callback.on_run_start(plan, done)

    def on_reply(self, result: RoundResult) -> None:
        for callback in self.callbacks:
            callback.on_reply(result)

    def on_round_end(self, result: RoundResult, row: dict[str, Any]) -> None:
        for callback in self.callbacks:
            callback.on_round_end(result, row)

    def on_run_end(self, run: Run) -> None:
        for callback in self.callbacks:
            callback.on_run_end(run)


class TensorBoardCallback(Callback):
    """Writes every number of metrics.jsonl and the sample grids as TensorBoard events: `tensorboard --logdir RUN`."""

    def on_run_start(self, plan: Plan, done: int) -> None:
        """Open the event file; events after the last checkpoint of an interrupted run are purged."""
        from torch.utils.tensorboard import SummaryWriter

        self.folder = plan.folder
        self.writer = SummaryWriter(str(plan.folder.path / "tensorboard"), purge_step=done + 1)

    def on_round_end(self, result: RoundResult, row: dict[str, Any]) -> None:
        """Write one round; steps count from 1."""
        step = result.round + 1
        for name, value in row.items():
            if isinstance(value, int | float) and name != "round":
                group = "bytes" if name.startswith(("bytes_", "floats_")) else "run"
                self.writer.add_scalar(f"{group}/{name}", value, step)
        grid = self.folder.samples / f"round-{step:04d}.png"
        if grid.exists():
            pixels = np.asarray(Image.open(grid).convert("RGB"))
            self.writer.add_image("samples", pixels, step, dataformats="HWC")
        self.writer.flush()

    def on_run_end(self, run: Run) -> None:  # noqa: ARG002
        """Close the event file."""
        self.writer.close()


def check_tensorboard() -> None:
    """Raise VitrailError if TensorBoard is not installed."""
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        raise VitrailError(
            "tensorboard=true: TensorBoard is not installed; install it with `pip install 'vitrail[tensorboard]'`, "
            "or remove the setting"
        ) from None


CALLBACKS: Registry[type[Callback]] = Registry(
    "callback",
    "vitrail.callbacks",
    {
        "report": ("vitrail.report.page:ReportCallback", "writes report.html at the end; part of every run"),
        "progress": ("vitrail.cli.progress:ProgressDisplay", "shows progress in the terminal, as `vitrail run` does"),
        "tensorboard": ("vitrail.experiment.callbacks:TensorBoardCallback", "writes TensorBoard event files"),
    },
)


def build_callbacks(given: Iterable[Callback | str]) -> CallbackList:
    """Return one callback that calls all given ones; names are looked up in CALLBACKS.

    Raises:
        VitrailError: If a name is not registered, or its class cannot be built without arguments.
    """
    built = []
    for one in callback_names(given) if isinstance(given, str) else given:
        if isinstance(one, Callback):
            built.append(one)
        elif isinstance(one, str):
            try:
                built.append(CALLBACKS[one]())
            except TypeError as e:
                raise VitrailError(f"callbacks={one}: {e}; pass an object to vitrail.train(callbacks=[...])") from e
        else:
            raise VitrailError(f"callbacks: {one!r} is neither a vitrail.Callback object nor the name of one")
    return CallbackList(*built)


def callback_names(text: str) -> list[str]:
    """Return the names in the setting `callbacks`.

    Examples:
        >>> callback_names("tensorboard, mine")
        ['tensorboard', 'mine']
    """
    return [name.strip() for name in text.split(",") if name.strip()]
