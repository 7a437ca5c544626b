"""Tables of a run: numbers by round, traffic by client, excluded clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from vitrail.report.rounds import Round, metric_names, thinned
from vitrail.report.table import Table
from vitrail.utils.quantities import number, plural, size

MAX_ROWS = 40  # of a table of rounds
_MAX_CLIENTS = 12  # up to this number, all clients have a row
_ENDS = 5  # of more clients, how many of the largest and of the smallest have a row


def rounds_table(rounds: Sequence[Round]) -> Table:
    """Return the numbers of a run's curves, one row per round."""
    names = metric_names(rounds)
    shown, rows = thinned(rounds, MAX_ROWS), []
    for r in shown:
        metrics = [number(r.metrics[name]) if name in r.metrics else "" for name in names]
        costs = [size(r.bytes_up), size(r.bytes_down), f"{r.seconds:.1f}", f"{r.replied:,} of {r.requested:,}"]
        rows.append([str(r.number), *metrics, *costs])
    note = f"{len(shown)} of {len(rounds):,} rounds; all are in metrics.jsonl." if len(shown) < len(rounds) else ""
    return Table("Numbers by round", ["round", *names, "up", "down", "seconds", "replied"], rows, note)


def clients_table(rounds: Sequence[Round]) -> Table:
    """Return what each client sent and received; of many clients, those with the most and the fewest bytes."""
    up: Counter[str] = Counter()
    down: Counter[str] = Counter()
    replies: Counter[str] = Counter()
    for r in rounds:
        up.update(r.up)
        down.update(r.down)
        replies.update(r.up.keys())
    names = sorted(up.keys() | down.keys(), key=lambda c: (-up[c] - down[c], c))
    rows = [[c, f"{replies[c]:,}", size(up[c]), size(down[c])] for c in names]
    note = ""
    if len(rows) > _MAX_CLIENTS:
        note = f"The {_ENDS} with the most and the fewest bytes of {plural(len(rows), 'client')}."
        rows = [*rows[:_ENDS], *rows[-_ENDS:]]
    return Table("Traffic by client", ["client", "replies", "up", "down"], rows, note)


def excluded_table(rounds: Sequence[Round]) -> Table | None:
    """Return which clients were excluded from which rounds, with the reason; None if there are none."""
    found: dict[tuple[str, str], list[int]] = {}
    for r in rounds:
        for client, reason in r.excluded.items():
            found.setdefault((client, reason), []).append(r.number)
    if not found:
        return None
    most_first = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    times = sum(map(len, found.values()))
    note = f"{plural(times, 'exclusion')} of {plural(len({client for client, _ in found}), 'client')} in total."
    if len(found) > _MAX_CLIENTS:
        note += f" The {_MAX_CLIENTS} most frequent of {len(found):,} cases are shown; all are in metrics.jsonl."
    rows = [[c, f"{len(ns):,}", _few(ns), reason] for (c, reason), ns in most_first[:_MAX_CLIENTS]]
    return Table("Excluded clients", ["client", "rounds excluded", "which", "reason"], rows, note)


def void_rounds(rounds: Sequence[Round]) -> list[str]:
    """Return each reason for which rounds were discarded, with the numbers of the rounds."""
    found: dict[str, list[int]] = {}
    for r in rounds:
        if r.void:
            found.setdefault(r.void, []).append(r.number)
    return [f"{'Round' if len(ns) == 1 else 'Rounds'} {_few(ns)}: {reason}" for reason, ns in found.items()]


def _few(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
