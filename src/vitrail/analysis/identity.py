"""Linear probe of identities on content and style features (PaDPaF, Figure 18).

The parts of CelebA share no person, so a probe fitted on the training part knows no identity of the test part. Here
both sets are held-out images: of each person with two or more, every second image fits the probe, the others test it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vitrail.analysis.probes import top_k_hits
from vitrail.analysis.trained import LoadedRun, TrainedNetworks
from vitrail.analysis.views import View, as_tensor, mean_over_images
from vitrail.metrics.measure import Measure
from vitrail.metrics.results_io import Column
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import VitrailError

KS = (1, 10, 50)
Progress = Callable[[str], None]


def probe_identities(run: LoadedRun, progress: Progress = lambda _: None) -> list[Column]:
    """Measure top-1, top-10 and top-50 accuracy from content, and from one client's style (mean over clients).

    Args:
        run: A run on data with identities.
        progress: Called with a message from time to time.

    Returns:
        One column for the trained networks and one for the untrained ones.

    Raises:
        VitrailError: If the data have no identities, or too few people with two images.
    """
    test = run.views.test
    if test.images.identities is None:
        raise VitrailError("the data have no identities; for data=celeba add identity_CelebA.txt to its folder")
    _, first = np.unique(test.source, return_index=True)  # images that several clients see are used once
    every = test.take(np.sort(first))
    assert every.images.identities is not None  # noqa: S101
    fit, held_out = split_each_identity(every.images.identities)
    if len(np.unique(every.images.identities[fit])) < 2:
        raise VitrailError("fewer than two people have two held-out images each; use data with more images per person")
    columns = []
    for name, nets in (("trained", run.trained), ("untrained", run.untrained)):
        with one_thread():
            progress(name)
            columns.append(Column(name, "", "", {}, _measures(run, nets, every.take(fit), every.take(held_out))))
    return columns


def split_each_identity(identities: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return indices to fit on and to test on; each person with two or more images is in both, alternately.

    >>> [part.tolist() for part in split_each_identity(np.array([7, 7, 9, 5, 7, 5]))]
    [[0, 3, 4], [1, 5]]
    """
    nth = np.zeros(len(identities), np.int64)
    counts: dict[int, int] = {}
    for k, person in enumerate(identities.tolist()):
        nth[k] = counts.get(person, 0)
        counts[person] = nth[k] + 1
    several = np.array([counts[person] > 1 for person in identities.tolist()], np.bool_)
    return np.flatnonzero(several & (nth % 2 == 0)), np.flatnonzero(several & (nth % 2 == 1))


def _measures(run: LoadedRun, nets: TrainedNetworks, fit: View, test: View) -> list[Measure]:
    assert fit.images.identities is not None and test.images.identities is not None  # noqa: S101, PT018
    y, truth = as_tensor(fit.images.identities), as_tensor(test.images.identities)
    people = len(y.unique())
    content = top_k_hits(nets.content(fit.x), y, nets.content(test.x), truth, KS)
    each = [top_k_hits(nets.style(n, fit.x), y, nets.style(n, test.x), truth, KS) for n in run.views.names]
    found = []
    for what, hits in (("content", content), ("style", {k: np.mean([e[k] for e in each], 0) for k in KS})):
        for k in KS:
            bounded = mean_over_images(hits[k], test.source)
            note = f"{people:,} people; random guess: {min(1, k / people):.1%}"
            found.append(Measure(f"top-{k} from {what}", *bounded, len(truth), len(y), "higher", "identity", note))
    return found
