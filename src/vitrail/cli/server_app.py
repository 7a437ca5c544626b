"""The ServerApp that `flwr run` starts: a run over nodes, with progress on the console."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from vitrail.cli.progress import ProgressDisplay
from vitrail.experiment.deployment.server import serve

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run a federation with the settings of Flower's run config."""
    serve(grid, context.run_config, ProgressDisplay())
