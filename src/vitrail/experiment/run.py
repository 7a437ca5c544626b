"""A finished run, as `vitrail.train` returns it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.experiment.run_dir import RunDir
from vitrail.experiment.settings import Settings
from vitrail.models.model_file import Classifier, Generator, load, load_classifier
from vitrail.privacy.ledger import read as read_ledger


@dataclass(frozen=True)
class Run:
    """A finished run.

    Args:
        folder: The run's folder.
        settings: Its resolved settings.
        rows: One dict per round: the lines of metrics.jsonl.
    """

    folder: Path
    settings: Settings = field(repr=False)
    rows: Sequence[dict[str, Any]] = field(repr=False)

    @property
    def privacy(self) -> str:
        """The privacy claim in one sentence; ledger.json has its details."""
        return [str(entry["says"]) for entry in read_ledger(RunDir(self.folder).ledger) if "says" in entry][-1]

    @property
    def generator(self) -> Generator:
        """The trained generator, loaded from the stored model."""
        return load(self.folder)

    @property
    def classifier(self) -> Classifier:
        """The trained classifier, loaded from its file, if the method trains one."""
        return load_classifier(self.folder)
