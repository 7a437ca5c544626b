"""The ServerApp that `flwr run` starts: a run over nodes, with progress on the console."""

from __future__ import annotations

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from vitrail.cli.progress import ProgressDisplay
from vitrail.experiment.deployment.server import serve
from vitrail.utils.errors import VitrailError, printable

app = ServerApp()


class ShortErrors(logging.Filter):
    """Flower's log without the traceback of an error that a user can fix, and without the exit code after it."""

    expected = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace the record of a VitrailError by its text; return whether to log a record."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, VitrailError | OSError):
            return not (self.expected and record.getMessage().startswith("Exit Code"))
        self.expected, record.exc_info, record.args = True, None, ()
        record.msg = "\n".join(printable(line, None) for line in f"error: {error}".split("\n"))
        return True


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run a federation with the settings of Flower's run config."""
    logging.getLogger("flwr").addFilter(ShortErrors())
    serve(grid, context.run_config, ProgressDisplay())
