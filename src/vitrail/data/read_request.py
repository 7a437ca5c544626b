"""The argument of a data source: what to read, and how to return it."""

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
    """A request to a data source; see `SOURCES` for an example.

    Args:
        source: Name of the source and its argument, the text after the colon in `data=NAME:ARGUMENT`.
        size: Height and width of the images to return.
        test_fraction: Probability that an image is held out, if the data has no test set.
        home: Folder for downloads and caches.
        progress: Function that shows the progress; None: a bar on the terminal.

    Examples:
        >>> import numpy as np
        >>> from vitrail.data.specs import parse_source
        >>> request = ReadRequest(parse_source("digits"), 8, 0.5, Path("data"))
        >>> data = request.dataset(Images(np.arange(640, dtype=np.uint8).reshape(10, 1, 8, 8)))
        >>> data.name, len(data.train) + len(data.test)
        ('digits', 10)
    """

    source: SourceSpec
    size: int
    test_fraction: float
    home: Path
    progress: Progress | None = None

    def file(self, name: str) -> Path:
        """Return the path of one of the source's official files; download it if it is missing.

        Args:
            name: Name of the file.

        Returns:
            The path.

        Raises:
            VitrailError: If the file is missing and cannot be downloaded.
        """
        return find(self.source.name, name, self.home, self.progress)

    def optional(self, name: str) -> Path | None:
        """Return the path of a file that may be missing and is never downloaded.

        Args:
            name: Name of the file.

        Returns:
            The path, or None if there is no such file.
        """
        return present(self.source.name, name, self.home)

    def dataset(
        self,
        train: Images,
        test: Images | None = None,
        classes: tuple[str, ...] = (),
        attributes: tuple[str, ...] = (),
        groups: tuple[str, ...] = (),
    ) -> Dataset:
        """Return the data set of these images.

        Args:
            train: Images to train on, of shape (n, channels, size, size).
            test: The test set; None: images of `train` are held out with probability `test_fraction`.
            classes: Names of the labels 0, 1, ...
            attributes: Names of the columns of `train.attributes`.
            groups: Names of the groups 0, 1, ...

        Returns:
            The data set, with the source's name.
        """
        split = OWN if test is not None else CONTENT
        if test is None:
            train, test = hold_out(train, self.test_fraction)
        return Dataset(str(self.source), train, test, classes, attributes, groups, split)
