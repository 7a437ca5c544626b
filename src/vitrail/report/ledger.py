"""What a run's ledger says, as a table; a ledger that was changed is said to be."""

from __future__ import annotations

from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.privacy.explain import claim_rows, read_run_ledger
from vitrail.report.tables import Table


def ledger_table(folder: Path) -> tuple[Table | None, str]:
    """The promise and all it rests on, or what is wrong with the ledger."""
    if not (folder / "ledger.json").exists():
        return None, ""
    try:
        entries, stands = read_run_ledger(folder)
        rows = [list(row) for row in claim_rows(entries[0])]
        if entries[-1]["kind"] == "closing":
            rows.append(["in the end", str(entries[-1]["says"])])
    except (VitrailError, KeyError, ValueError, TypeError, IndexError) as e:
        return None, f"ledger.json cannot be relied on: {e}"
    note = f"ledger.json has {len(entries)} lines, chained by hashes; {stands}. The chain held when this page was made."
    return Table("What is promised, and what it rests on", ["", "as written before anything left"], rows, note), ""
