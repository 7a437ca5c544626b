"""Progress of long operations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

Progress = Callable[[str, int, int], None]  # description, units done, total units (0: unknown)


@contextlib.contextmanager
def show_progress(progress: Progress | None) -> Iterator[Progress]:
    """Yield the given function that shows the progress or, for None, one that draws a bar on the error stream."""
    if progress is not None:
        yield progress
        return
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from vitrail.utils.console import Console

    console = Console(stderr=True)
    with Bars(console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total or None)
            bars.update(tasks[what], completed=done)

        yield show
