"""Print the findings of an audit on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from vitrail.auditing import ATTACKS
from vitrail.auditing.audit_run import Audit
from vitrail.report.audit import case_rows, figure_cells, lower_cells
from vitrail.utils.console import Console


def print_audit(audit: Audit, console: Console) -> None:
    """Print the claim with the bounds, then the results of attacks without a bound."""
    console.print(f"Claim, by {audit.claim['by']}: {audit.claim['says']}\n", markup=False)
    if bounds := [[f.attack, *lower_cells(lower)] for f in audit.findings for lower in f.lowers]:
        _print_table(console, ["attack", "ε found, at least", "ε claimed, at most", "how", ""], bounds)
        console.print("\nBounds of 95% confidence. Each claim is for exactly the replies that were attacked.\n")
    if figures := [[f.attack, *figure_cells(figure)] for f in audit.findings for figure in f.figures]:
        _print_table(console, ["attack", "metric", "value", "random guess"], figures)
        console.print("\nIn brackets: 95% intervals.\n")
    for finding in audit.findings:
        if finding.cases:
            _print_table(console, *case_rows(finding.cases))
            console.print(f"\nIn brackets: 95% intervals. {finding.image_file}: {finding.caption}.\n", markup=False)
    for finding in audit.findings:
        note = f" {finding.note.rstrip('.')}." if finding.note else ""
        console.print(f"{finding.attack}: {finding.about}.{note}", markup=False)
    for name in audit.skipped:
        console.print(f"{name}: does not apply to this run ({ATTACKS[name]}).", markup=False)
    console.print(f"\n{audit.verdict}", markup=False, style="bold red" if audit.refuted else "bold")


def _print_table(console: Console, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(*titles, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
