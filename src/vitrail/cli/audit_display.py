"""Print the findings of an audit on the terminal."""

from __future__ import annotations

from vitrail.auditing import ATTACKS
from vitrail.auditing.audit_run import Audit
from vitrail.report.audit import case_rows, figure_cells, lower_cells
from vitrail.utils.console import Console, print_table


def print_audit(audit: Audit, console: Console) -> None:
    """Print the claim with the bounds, then the results of attacks without a bound."""
    console.print(f"Claim, by {audit.claim['by']}: {audit.claim['says']}\n", markup=False)
    if bounds := [[f.attack, *lower_cells(lower)] for f in audit.findings for lower in f.lowers]:
        print_table(console, bounds, ["attack", "ε found, at least", "ε claimed, at most", "how", ""])
        console.print("\nBounds of 95% confidence. Each claim is for exactly the replies that were attacked.\n")
    if figures := [[f.attack, *figure_cells(figure)] for f in audit.findings for figure in f.figures]:
        print_table(console, figures, ["attack", "metric", "value", "random guess"])
        console.print("\nIn brackets: 95% intervals.\n")
    for finding in audit.findings:
        if finding.cases:
            titles, rows = case_rows(finding.cases)
            print_table(console, rows, titles)
            console.print(f"\nIn brackets: 95% intervals. {finding.image_file}: {finding.caption}.\n", markup=False)
    for finding in audit.findings:
        note = f" {finding.note.rstrip('.')}." if finding.note else ""
        console.print(f"{finding.attack}: {finding.about}.{note}", markup=False)
    for name in audit.skipped:
        console.print(f"{name}: does not apply to this run ({ATTACKS[name]}).", markup=False)
    console.print(f"\n{audit.verdict}", markup=False, style="bold red" if audit.refuted else "bold")
