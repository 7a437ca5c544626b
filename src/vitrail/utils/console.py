"""The terminal: text is printed as it is, without emoji codes, and is not wrapped in files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich import console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from vitrail.utils.errors import printable


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


def print_table(console: Console, rows: Iterable[Sequence[str]], columns: Sequence[str] = (), title: str = "") -> None:
    """Print rows of text from any party; without column titles, the first column is never wrapped.

    Examples:
        >>> rows = [["prism", "[up] 9 kB"], ["fedgan", "1 MB"]]
        >>> print_table(Console(), rows, ["run", "bytes"])  # doctest: +NORMALIZE_WHITESPACE
        run     bytes
        prism   [up] 9 kB
        fedgan  1 MB
    """
    rows = list(rows)
    table = Table(
        title=escape(title), title_justify="left", title_style="bold", header_style="bold",
        box=None, pad_edge=False, show_header=bool(columns),
    )  # fmt: skip
    for i, name in enumerate(columns or ("",) * max(map(len, rows), default=0)):
        table.add_column(escape(name), overflow="fold", no_wrap=i == 0 and not columns)
    for row in rows:
        table.add_row(*(escape(printable(cell, None)) for cell in row))
    console.print(table)
