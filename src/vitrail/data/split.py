"""Holding pictures out where a data set does not say which."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.data.pictures import Pictures

# A constant, and not the run's seed: the held-out pictures are the same in every run, so that a run is never
# measured on what an earlier one, from which it started, was trained on.
_KEY = int.from_bytes(b"vitrail held-out")


def check_share(held_out: float) -> None:
    """Refuse a share that leaves nothing to train on."""
    if not 0 <= held_out < 1:
        raise VitrailError(f"held_out={held_out}: must be at least 0 and less than 1, such as 0.2")


def hold_out(pictures: Pictures, share: float) -> tuple[Pictures, Pictures]:
    """Train and held-out pictures: the same share of every label in every group, chosen by position alone."""
    n = len(pictures)
    keys = [k for k in (pictures.labels, pictures.groups) if k is not None]
    test = _stratified(n, keys, share)
    if n and test.all():
        raise VitrailError(f"held_out={share}: leaves none of {n} pictures to train on; hold out less")
    return pictures.take(np.flatnonzero(~test)), pictures.take(np.flatnonzero(test))


def _stratified(n: int, keys: list[NDArray[np.int64]], share: float) -> NDArray[np.bool_]:
    """Shuffled, sorted by stratum, every (1/share)-th is taken: a stratum keeps its share to within one."""
    # The raw bits of a bit generator are the only ones NumPy promises never to change between versions.
    shuffle = np.random.Philox(key=_KEY).random_raw(n)
    order = np.lexsort((shuffle, *keys))
    chosen = np.diff(np.floor(np.arange(n + 1) * share + 0.5)) > 0
    test = np.zeros(n, np.bool_)
    test[order] = chosen
    return test
