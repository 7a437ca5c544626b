"""What a reader of data is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vitrail.data.dataset import Dataset, Images
from vitrail.data.holdout import CONTENT, OWN, hold_out
from vitrail.data.lookup import find, present
from vitrail.data.progress import Progress
from vitrail.data.specs import SourceSpec


@dataclass(frozen=True)
class ReadRequest:
    """Which data, at what size, how much of it held out, and where files are kept."""

    source: SourceSpec
    size: int
    test_fraction: float
    home: Path
    progress: Progress | None = None

    def file(self, name: str) -> Path:
        """The path of one of the source's official files."""
        return find(self.source.name, name, self.home, self.progress)

    def optional(self, name: str) -> Path | None:
        """The path of a file that may be missing, and is not downloaded."""
        return present(self.source.name, name, self.home)

    def answer(
        self,
        train: Images,
        test: Images | None,
        classes: tuple[str, ...] = (),
        attributes: tuple[str, ...] = (),
        groups: tuple[str, ...] = (),
    ) -> Dataset:
        """The data set of these pictures; without test pictures, some are held out."""
        split = OWN if test is not None else CONTENT
        if test is None:
            train, test = hold_out(train, self.test_fraction)
        return Dataset(str(self.source), train, test, classes, attributes, groups, split)
