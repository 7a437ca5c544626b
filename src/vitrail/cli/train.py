"""Commands that train: run, resume, partition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from vitrail.cli.settings_arguments import Overrides, parse_overrides

if TYPE_CHECKING:
    from vitrail.cli.progress import ProgressDisplay


def run(
    what: Annotated[
        str, Argument(metavar="METHOD|FILE.toml", help="A method (see `vitrail list`) or a settings file.")
    ],
    overrides: Overrides = None,
) -> None:
    """Train a generator with a method or a settings file.

    `vitrail run prism` uses mnist5k, 5,000 built-in digits of MNIST, and ten clients.

    `vitrail run fedgan data=mnist clients=6 partition=skew:0.7 sync=g seed=1 out=runs/skewed`

    `vitrail run prism data=folder:hospitals partition=folders` uses your own images: hospitals/CLIENT/LABEL/*.png

    `vitrail run runs/skewed/settings.toml out=runs/again` repeats a run bit for bit. `vitrail list METHOD` shows all
    settings with their defaults.
    """
    from vitrail.experiment import settings as config
    from vitrail.experiment.train import start_run

    settings = config.resolve(what, parse_overrides(overrides))
    _with_progress(lambda display: start_run(settings, None, display))


def resume(
    folder: Annotated[str, Argument(metavar="RUN", help="Folder of an interrupted run.")],
    workers: Annotated[int | None, Option(min=1, help="Number of processes that train clients.")] = None,
) -> None:
    """Continue an interrupted run; the result is bitwise identical to an uninterrupted run's.

    `vitrail resume runs/prism-mnist5k-1`
    """
    from vitrail.experiment.train import resume as continue_run

    _with_progress(lambda display: continue_run(folder, workers=workers, callbacks=[display]))


def _with_progress(work: Callable[[ProgressDisplay], object]) -> None:
    """Run a training with a progress display; Ctrl-C ends it with the command that continues."""
    from vitrail.cli.progress import ProgressDisplay

    display = ProgressDisplay()
    try:
        work(display)
    except KeyboardInterrupt:
        display.stop()
        typer.echo(
            f"\nInterrupted; all finished rounds are saved. Continue with: vitrail resume {display.folder or 'RUN'}",
            err=True,
        )
        raise typer.Exit(130) from None
    finally:
        display.stop()


def partition(
    out: Annotated[str, Argument(metavar="OUT.png", help="Image file to write.")], overrides: Overrides = None
) -> None:
    """Draw how a partition distributes classes over clients, without training.

    `vitrail partition p.png data=mnist clients=20 partition=dirichlet:0.1 seed=3`
    """
    from vitrail.data import plot_partition
    from vitrail.experiment import settings as config
    from vitrail.experiment.plan import prepare
    from vitrail.methods import METHODS

    any_method = next(iter(METHODS))  # none is trained
    plan = prepare(config.resolve(any_method, {"out": "-", **parse_overrides(overrides)}))
    plot_partition(plan.partition, plan.data, Path(out))
    typer.echo(f"{len(plan.clients)} clients have images, {len(plan.empty)} have none: {out}")
