"""Print an audit on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from vitrail.auditing import ATTACKS
from vitrail.auditing.attack import Finding
from vitrail.auditing.audit_run import Audit
from vitrail.report.audit_tables import case_rows, figure_cells, lower_cells


def show(audit: Audit, console: Console) -> None:
    """Print the claim with the bounds, then the results of attacks without a bound."""
    console.print(f"Claim, by {audit.claim['by']}: {audit.claim['says']}\n", markup=False)
    if any(f.lowers for f in audit.findings):
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("attack", "ε found, at least", "ε claimed, at most", "how", ""):
            table.add_column(title)
        for finding in audit.findings:
            for lower in finding.lowers:
                table.add_row(finding.attack, *lower_cells(lower))
        console.print(table)
        console.print("\nBounds of 95% confidence. Each claim is for exactly the answers that were attacked.\n")
    if any(f.figures for f in audit.findings):
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("attack", "metric", "value", "random guess"):
            table.add_column(title)
        for finding in audit.findings:
            for figure in finding.figures:
                table.add_row(finding.attack, *figure_cells(figure))
        console.print(table)
        console.print("\nIn brackets: 95% intervals.\n")
    for finding in audit.findings:
        if finding.cases:
            _cases(finding, console)
    for finding in audit.findings:
        note = f" {finding.note.rstrip('.')}." if finding.note else ""
        console.print(f"{finding.attack}: {finding.about}.{note}", markup=False)
    for name in audit.skipped:
        console.print(f"{name}: does not apply to this run ({ATTACKS[name]}).", markup=False)
    console.print(f"\n{audit.verdict}", markup=False, style="bold red" if audit.refuted else "bold")


def _cases(finding: Finding, console: Console) -> None:
    """Print one row per attacker."""
    columns, rows = case_rows(finding.cases)
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(f"\nIn brackets: 95% intervals. {finding.picture}: {finding.caption}.\n", markup=False)
