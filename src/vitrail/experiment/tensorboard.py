"""TensorBoard events of a run: `tensorboard=true`, then `tensorboard --logdir RUN`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from vitrail.experiment.callbacks import Callback
from vitrail.utils.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.engines.rounds import RoundResult
    from vitrail.experiment.plan import Plan
    from vitrail.experiment.run import Run


def check_installed() -> None:
    """Raise VitrailError if TensorBoard is not installed."""
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        raise VitrailError(
            "tensorboard=true: TensorBoard is not installed; install it with `pip install 'vitrail[tensorboard]'`, "
            "or leave the setting out"
        ) from None


class TensorBoardCallback(Callback):
    """Writes every number of metrics.jsonl and the sample grids as TensorBoard events."""

    def on_run_start(self, plan: Plan, done: int) -> None:
        """Open the event file; events after the last checkpoint of an interrupted run are purged."""
        from torch.utils.tensorboard import SummaryWriter

        self.folder = plan.folder
        self.writer = SummaryWriter(str(plan.folder.path / "tensorboard"), purge_step=done + 1)

    def on_round_end(self, result: RoundResult, row: dict[str, Any]) -> None:
        """Write one round; steps count from 1."""
        step = result.round + 1
        for name, value in row.items():
            if isinstance(value, int | float) and name != "round":
                group = "bytes" if name.startswith(("bytes_", "floats_")) else "run"
                self.writer.add_scalar(f"{group}/{name}", value, step)
        grid = self.folder.samples / f"round-{step:04d}.png"
        if grid.exists():
            pixels = np.asarray(Image.open(grid).convert("RGB"))
            self.writer.add_image("samples", pixels, step, dataformats="HWC")
        self.writer.flush()

    def on_run_end(self, run: Run) -> None:  # noqa: ARG002
        """Close the event file."""
        self.writer.close()
