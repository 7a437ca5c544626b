"""The callback that writes a finished run's report."""

from __future__ import annotations

from vitrail.experiment.callbacks import Callback
from vitrail.experiment.run import Run
from vitrail.experiment.run_dir import RunDir
from vitrail.report.page import write_report


class ReportCallback(Callback):
    """Writes report.html when a run is finished."""

    def on_run_end(self, run: Run) -> None:
        write_report([run.folder], RunDir(run.folder).report)
