"""A table as data, for reports and the terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_NUMBER = r"[-+±<]?\d[\d.,]*(e[-+]\d+)?"
_FIGURE = re.compile(rf"{_NUMBER}( (B|kB|MB|GB|TB|s|min|h|%|×|±|to|of|round|\(|\)|{_NUMBER}))*")


@dataclass(frozen=True)
class Table:
    """Cells as text, ready to be shown.

    Args:
        title: Caption.
        columns: Column names; the first column names the rows.
        rows: One text per column; an empty text is a missing value.
        note: A remark below the table.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    @property
    def kinds(self) -> list[str]:
        """CSS class of each column: "figure" is right-aligned, "text" is wide."""
        columns = ([row[i] for row in self.rows if i < len(row) and row[i]] for i in range(1, len(self.columns)))
        kinds = ("figure" if all(map(_is_figure, c)) else "text" if max(map(len, c)) > 24 else "" for c in columns)
        return ["", *kinds][: len(self.columns)]


def _is_figure(cell: str) -> bool:
    """Return whether a cell is a number, with an optional unit, interval or remark in brackets.

    >>> _is_figure("12.3 (11 to 13.6)"), _is_figure("<1"), _is_figure("5,000 generated, 1,000 real")
    (True, True, False)
    """
    return bool(_FIGURE.fullmatch(cell.replace("(", "( ").replace(")", " )")))
