"""What a run's ledger says, as a table; a ledger that was changed is said to be."""

from __future__ import annotations

from pathlib import Path

from vitrail.privacy.checked_ledger import read_run_ledger
from vitrail.privacy.claim_rows import claim_rows
from vitrail.report.tables import Table
from vitrail.utils.errors import VitrailError


def ledger_table(folder: Path) -> tuple[Table | None, str]:
    """The promise and all it rests on, or what is wrong with the ledger."""
    if not (folder / "ledger.json").exists():
        return None, ""
    try:
        checked = read_run_ledger(folder)
        entries = checked.entries
        rows = [list(row) for row in claim_rows(entries[0])]
        rows += [["in the end", str(entry["says"])] for entry in entries if entry["kind"] == "closing"]
    except (VitrailError, KeyError, ValueError, TypeError, IndexError) as e:
        return None, f"ledger.json cannot be relied on: {e}"
    note = (
        f"ledger.json has {len(entries)} entries, chained by hashes and {checked.signed}; {checked.model}. When this "
        f"page was made, the chain proved {checked.proves}"
    )
    return Table("What is promised, and what it rests on", ["", "as written before anything left"], rows, note), ""
