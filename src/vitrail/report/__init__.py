"""Reports: one self-contained HTML page about one run, or a comparison of several."""

from __future__ import annotations

from vitrail.report.page import write_report
from vitrail.report.table import Table

__all__ = ["Table", "write_report"]
