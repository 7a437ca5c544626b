"""Loading of data: from a `data=` setting to a data set."""

from __future__ import annotations

from pathlib import Path

from vitrail.data.dataset import Dataset
from vitrail.data.holdout import check_test_fraction
from vitrail.data.official import FILES
from vitrail.data.progress import Progress
from vitrail.data.read_request import ReadRequest
from vitrail.data.resize import side
from vitrail.data.sources import SOURCES
from vitrail.data.specs import parse_source
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.paths import data_home as default_home


def image_side(spec: str, size: int | None = None) -> int:
    """Return the height and width in pixels of the images that `load` returns.

    Args:
        spec: The `data=` setting.
        size: The `size=` setting; None: the default of the source.

    Examples:
        >>> image_side("mnist"), image_side("celeba"), image_side("celeba", 16)
        (32, 64, 16)
    """
    return side(size, usual=64 if parse_source(spec).name == "celeba" else 32)


def load(
    spec: str,
    *,
    size: int | None = None,
    test_fraction: float = 0.2,
    home: Path | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Load the data that a `data=` setting names, as square images of one size.

    Args:
        spec: A source such as `mnist5k`, `cifar10:1` or `folder:PATH`; `vitrail list` shows all.
        size: Height and width of the images; None: 32, for `celeba` 64.
        test_fraction: Probability that an image is held out, by a hash of its pixels, if the data has no test set.
        home: Folder for downloads and caches; None: see `vitrail.utils.paths.data_home`.
        progress: Function of a description, the units done and their total; None: a bar on the terminal.

    Returns:
        Training and test images with the names of their classes.

    Raises:
        VitrailError: If there is no such source, or a file is missing.
        Malformed: If a file is damaged.

    Examples:
        >>> digits = load("digits", size=8)
        >>> len(digits.train), len(digits.test), digits.shape
        (1442, 355, (1, 8, 8))
    """
    source = parse_source(spec)
    check_test_fraction(test_fraction)
    size = image_side(spec, size)
    try:
        data = SOURCES[source.name](ReadRequest(source, size, test_fraction, home or default_home(), progress))
    except Malformed as problem:
        if source.name not in FILES:
            raise
        raise Malformed(f"{problem}; replace the file, or remove it to download it again") from problem
    if not isinstance(data, Dataset):
        raise VitrailError(
            f"data={spec}: the source returned {type(data).__name__}, expected vitrail.Dataset; "
            "return request.dataset(images, classes=...)"
        )
    if data.train.pixels.ndim != 4 or data.shape[1:] != (size, size):
        raise VitrailError(
            f"data={spec}: the source returned images of shape {data.train.pixels.shape}, expected "
            f"(n, channels, {size}, {size}); resize them in the source (`vitrail.data.resize.fit`)"
        )
    return data
