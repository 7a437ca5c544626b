"""Tables of a run: all numbers by round, traffic by client, who was left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from vitrail.report.rounds import Round, metric_names, thinned
from vitrail.utils.quantities import number, plural, size

LONGEST = 40  # rows that a table of rounds has at most
_FEW = 12  # clients up to which each has a row of its own
_ENDS = 5  # of more clients, how many of the largest and of the smallest are shown
_NUMBER = r"[-+±]?\d[\d.,]*(e[-+]\d+)?"
_FIGURE = re.compile(rf"{_NUMBER}( (B|kB|MB|GB|TB|s|min|h|%|×|±|to|of|round|\(|\)|{_NUMBER}))*")


@dataclass(frozen=True)
class Table:
    """A table ready to be shown: its first column names the rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    @property
    def kinds(self) -> list[str]:
        """How each column is set: a figure at the right, a text with room, or plain."""
        columns = ([row[i] for row in self.rows if i < len(row) and row[i]] for i in range(len(self.columns)))
        return ["" if i == 0 else _kind(cells) for i, cells in enumerate(columns)]


def _kind(cells: Sequence[str]) -> str:
    return "figure" if all(map(_is_figure, cells)) else "text" if max(map(len, cells)) > 24 else ""


def _is_figure(cell: str) -> bool:
    """Whether a cell is a number, perhaps with a unit, an interval or a remark in brackets.

    >>> _is_figure("12.3 (11 to 13.6)"), _is_figure("2 min 45 s"), _is_figure("5,000 generated, 1,000 real")
    (True, True, False)
    """
    return bool(_FIGURE.fullmatch(cell.replace("(", "( ").replace(")", " )")))


def rounds_table(rounds: Sequence[Round]) -> Table:
    """The numbers behind a run's curves."""
    names = metric_names(rounds)
    shown = thinned(rounds, LONGEST)
    return Table(
        title="The numbers behind the curves",
        columns=["round", *names, "up", "down", "seconds", "replied"],
        rows=[
            [
                str(r.number),
                *(number(r.metrics[name]) if name in r.metrics else "" for name in names),
                size(r.bytes_up),
                size(r.bytes_down),
                f"{r.seconds:.1f}",
                f"{r.replied:,} of {r.requested:,}",
            ]
            for r in shown
        ],
        note=f"{len(shown)} of {len(rounds):,} rounds; metrics.jsonl has all." if len(shown) < len(rounds) else "",
    )


def clients_table(rounds: Sequence[Round]) -> Table:
    """What each client sent and received; of many clients those with most and with least."""
    up: Counter[str] = Counter()
    down: Counter[str] = Counter()
    took: Counter[str] = Counter()
    for r in rounds:
        up.update(r.up)
        down.update(r.down)
        took.update(r.up.keys())
    names = sorted(up.keys() | down.keys(), key=lambda c: (-up[c] - down[c], c))
    rows = [[c, f"{took[c]:,}", size(up[c]), size(down[c])] for c in names]
    few = len(rows) <= _FEW
    return Table(
        title="Traffic by client",
        columns=["client", "answers", "up", "down"],
        rows=rows if few else [*rows[:_ENDS], *rows[-_ENDS:]],
        note="" if few else f"The {_ENDS} with most and the {_ENDS} with least of {plural(len(rows), 'client')}.",
    )


def excluded_table(rounds: Sequence[Round]) -> Table | None:
    """Who was left out of which rounds, and why; None when nobody was."""
    found: dict[tuple[str, str], list[int]] = {}
    for r in rounds:
        for client, reason in r.excluded.items():
            found.setdefault((client, reason), []).append(r.number)
    if not found:
        return None
    most_first = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    times = sum(map(len, found.values()))
    note = f"{plural(times, 'answer')} missed by {plural(len({client for client, _ in found}), 'client')} in all."
    if len(found) > _FEW:
        note += f" The {_FEW} most frequent of {len(found):,} cases are shown; metrics.jsonl has all."
    return Table(
        title="Left out",
        columns=["client", "rounds missed", "which", "reason"],
        rows=[[c, f"{len(ns):,}", _few(ns), reason] for (c, reason), ns in most_first[:_FEW]],
        note=note,
    )


def void_rounds(rounds: Sequence[Round]) -> list[str]:
    """Each reason for which rounds left the model as it was, with their numbers."""
    found: dict[str, list[int]] = {}
    for r in rounds:
        if r.void:
            found.setdefault(r.void, []).append(r.number)
    return [f"{'Round' if len(ns) == 1 else 'Rounds'} {_few(ns)}: {reason}" for reason, ns in found.items()]


def _few(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
