"""Showing how far something is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much (0: nobody knows)


@contextlib.contextmanager
def shown(progress: Progress | None) -> Iterator[Progress]:
    """The caller's way to show progress or, where there is none, a bar on the terminal's error stream."""
    if progress is not None:
        yield progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total or None)
            bars.update(tasks[what], completed=done)

        yield show
