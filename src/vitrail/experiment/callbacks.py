"""Callbacks: objects that follow a run's progress. They cannot change what a run computes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vitrail.utils.errors import VitrailError
from vitrail.utils.registry import Registry

if TYPE_CHECKING:
    from vitrail.engines.rounds import RoundResult
    from vitrail.experiment.plan import Plan
    from vitrail.experiment.run import Run


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
        """Called after each reply of a client, with the result of the round so far."""

    def on_round_end(self, result: RoundResult, row: dict[str, Any]) -> None:
        """Called after each round.

        Args:
            result: Who replied, who was excluded and why, and the bytes sent.
            row: The round's line of metrics.jsonl.
        """

    def on_run_end(self, run: Run) -> None:
        """Called when the run is finished and its files are written."""


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


CALLBACKS: Registry[type[Callback]] = Registry(
    "callback",
    "vitrail.callbacks",
    {
        "report": ("vitrail.report.callback:ReportCallback", "writes report.html at the end; part of every run"),
        "progress": ("vitrail.cli.progress:ProgressDisplay", "shows progress in the terminal, as `vitrail run` does"),
        "tensorboard": ("vitrail.experiment.tensorboard:TensorBoardCallback", "writes TensorBoard event files"),
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
