"""A run for TensorBoard: `tensorboard=true`, then `tensorboard --logdir RUN`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from vitrail.utils.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.engines.rounds import RoundResult
    from vitrail.experiment.plan import Plan
    from vitrail.experiment.runner import Run


def check_installed() -> None:
    """Refuse early where TensorBoard is missing."""
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        raise VitrailError(
            "tensorboard=true: TensorBoard is not installed; `pip install 'vitrail[tensorboard]'` does it, "
            "or leave the setting out"
        ) from None


class TensorBoardCallback:
    """Watches a run: every number of metrics.jsonl, and the sample grids."""

    def begin(self, plan: Plan, done: int) -> None:
        """Open the events of this run; what a killed run wrote beyond its last checkpoint is purged."""
        from torch.utils.tensorboard import SummaryWriter

        self.folder = plan.folder
        self.writer = SummaryWriter(str(plan.folder.path / "tensorboard"), purge_step=done + 1)

    def during(self, outcome: RoundResult) -> None:
        """Nothing: a round is written when it is over."""

    def round(self, outcome: RoundResult, row: dict[str, Any]) -> None:
        """Write a round, counted from 1."""
        step = outcome.round + 1
        for name, value in row.items():
            if isinstance(value, int | float) and name != "round":
                group = "bytes" if name.startswith(("bytes_", "floats_")) else "run"
                self.writer.add_scalar(f"{group}/{name}", value, step)
        grid = self.folder.samples / f"round-{step:04d}.png"
        if grid.exists():
            pixels = np.asarray(Image.open(grid).convert("RGB"))
            self.writer.add_image("samples", pixels, step, dataformats="HWC")
        self.writer.flush()

    def end(self, run: Run) -> None:  # noqa: ARG002
        """Close the events."""
        self.writer.close()
