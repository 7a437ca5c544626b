"""Tables of plain text on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vitrail.utils.errors import printable


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
