"""The report: one self-contained page about one run, or several side by side."""

from __future__ import annotations

from vitrail.report.page import write_report
from vitrail.report.tables import Table

__all__ = ["Table", "write_report"]
