"""A run's privacy ledger as a table; problems of its hash chain or signature are reported."""

from __future__ import annotations

from pathlib import Path

from vitrail.privacy.checked_ledger import read_run_ledger
from vitrail.privacy.claim_rows import claim_rows
from vitrail.report.table import Table
from vitrail.utils.errors import VitrailError


def ledger_table(folder: Path) -> tuple[Table | None, str]:
    """Return the privacy claim with its assumptions, or None and a description of the problem."""
    if not (folder / "ledger.json").exists():
        return None, ""
    try:
        checked = read_run_ledger(folder)
        entries = checked.entries
        rows = [list(row) for row in claim_rows(entries[0])]
        rows += [["at the end", str(entry["says"])] for entry in entries if entry["kind"] == "closing"]
    except (VitrailError, KeyError, ValueError, TypeError, IndexError) as e:
        return None, f"ledger.json is not valid: {e}"
    note = (
        f"ledger.json has {len(entries)} entries, chained by hashes and {checked.signed}; {checked.model}. When this "
        f"page was written, the chain proved {checked.proves}"
    )
    return Table("Privacy claim and its assumptions", ["", "as recorded before anything was sent"], rows, note), ""
