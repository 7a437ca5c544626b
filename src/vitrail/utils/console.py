"""The terminal: text is printed as it is, without emoji codes, and is not wrapped in files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich import console
from rich.text import Text


class Console(console.Console):
    """A console for text that contains names and paths of others.

    `folder:hospital:` has no code for an emoji, numbers are not highlighted, and only a terminal wraps lines of text.
    Tables are always fitted to the width.

    Args:
        stderr: Print to the error stream.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, emoji=False)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print objects, as `rich.console.Console.print` does."""
        text = all(isinstance(one, str) for one in objects)
        super().print(*objects, **{"soft_wrap": text and not self.is_terminal, **options})


@contextmanager
def show_status() -> Iterator[Callable[[str], None]]:
    """Show a line of text on a terminal while something runs; yield the function that changes it."""
    with Console(stderr=True).status("loading") as status:
        yield lambda text: status.update(Text(text))
