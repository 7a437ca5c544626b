"""Who is on a picture? A linear probe of identities on content's and style's features (PaDPaF, Figure 18).

CelebA's parts share no person, so nobody whom a probe knows from the training part is in the test part. Here both sets
are held-out pictures: of each person with two or more, every second one fits the probe, and the others are asked.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vitrail.analysis.probes import top
from vitrail.analysis.trained import Opened, Trained
from vitrail.analysis.views import View, as_tensor, mean_over_pictures
from vitrail.metrics.measure import Measure
from vitrail.metrics.results_io import Column
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import VitrailError

KS = (1, 10, 50)
Tell = Callable[[str], None]


def probe_identities(opened: Opened, tell: Tell = lambda _: None) -> list[Column]:
    """Top-1, top-10 and top-50 from content, and from one client's style (mean over clients); also untrained."""
    test = opened.views.test
    who = test.pictures.identities
    if who is None:
        raise VitrailError(
            "nothing says who is on the pictures; for data=celeba put identity_CelebA.txt beside its other files"
        )
    _, first = np.unique(test.shows, return_index=True)  # what several clients see is asked once
    every = test.take(np.sort(first))
    assert every.pictures.identities is not None  # noqa: S101
    fit, ask = halves_of_each(every.pictures.identities)
    if len(np.unique(every.pictures.identities[fit])) < 2:
        raise VitrailError("fewer than two people have two held-out pictures each; take data with more of them")
    columns = []
    for name, nets in (("trained", opened.trained), ("untrained", opened.untrained)):
        with one_thread():
            tell(name)
            columns.append(Column(name, "", "", {}, _measures(opened, nets, every.take(fit), every.take(ask))))
    return columns


def halves_of_each(who: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions to fit on and to ask for: each person with two or more pictures is in both, by turns.

    >>> [part.tolist() for part in halves_of_each(np.array([7, 7, 9, 5, 7, 5]))]
    [[0, 3, 4], [1, 5]]
    """
    turn = np.zeros(len(who), np.int64)
    counts: dict[int, int] = {}
    for k, person in enumerate(who.tolist()):
        turn[k] = counts.get(person, 0)
        counts[person] = turn[k] + 1
    several = np.array([counts[person] > 1 for person in who.tolist()], np.bool_)
    return np.flatnonzero(several & (turn % 2 == 0)), np.flatnonzero(several & (turn % 2 == 1))


def _measures(opened: Opened, nets: Trained, fit: View, ask: View) -> list[Measure]:
    assert fit.pictures.identities is not None and ask.pictures.identities is not None  # noqa: S101, PT018
    y, truth = as_tensor(fit.pictures.identities), as_tensor(ask.pictures.identities)
    people = len(y.unique())
    content = top(nets.content(fit.x), y, nets.content(ask.x), truth, KS)
    each = [top(nets.style(n, fit.x), y, nets.style(n, ask.x), truth, KS) for n in opened.views.names]
    found = []
    for what, hits in (("content", content), ("style", {k: np.mean([e[k] for e in each], 0) for k in KS})):
        for k in KS:
            bounded = mean_over_pictures(hits[k], ask.shows)
            note = f"{people:,} people; chance: {min(1, k / people):.1%}"
            found.append(Measure(f"top-{k} from {what}", *bounded, len(truth), len(y), "higher", "identity", note))
    return found
