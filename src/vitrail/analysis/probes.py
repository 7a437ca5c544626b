"""Linear probes of labels, clients and identities on content features φ^c and style features φ^s (PaDPaF, C.2.2).

Each client has its own φ^s_i, so the network itself could reveal the client; here every φ^s_i sees the images of all
clients. "Style" is the mean over clients of the accuracy with one φ^s_i; "style of all" combines one number per
client.
"""

# φ is a mean over the positions of a feature map, but labels depend on where strokes are: `positions` fits label
# probes on a pooled map instead, as is usual for discriminator features (Radford, Metz, Chintala; 2016). Probes of
# labels and clients are fitted on the clients' training images and tested on held-out images. For identities (PaDPaF,
# Figure 18) both sets are held-out images, since the parts of CelebA share no person: of each person with two or more
# images, every second one fits the probe, the others test it.

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.analysis.trained import LoadedRun, Progress, TrainedNetworks
from vitrail.analysis.views import View, as_tensor, mean_over_images
from vitrail.metrics.distances import fitted_probe, probe
from vitrail.metrics.measure import Measure
from vitrail.metrics.results_io import Column
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng

Hits = NDArray[np.float64]
Features = Callable[[Tensor, int], Tensor]
STEPS = 600


def probe_run(run: LoadedRun, progress: Progress = lambda _: None, positions: int = 1) -> list[Column]:
    """Measure the accuracy of linear probes of labels and clients.

    Args:
        run: A run with at least two clients.
        progress: Called with a message from time to time.
        positions: Fit label probes on positions x positions means of the feature map; 1: on φ.

    Returns:
        One column for the trained networks and one for the untrained ones.

    Raises:
        VitrailError: If there is only one client, or `positions` does not divide the size of the feature map.
    """
    names = run.views.names
    if len(names) < 2:
        raise VitrailError("the run has one client, so a probe of clients has one answer; use a run with two or more")
    side = run.trained.D_c.map(run.views.test.x[:1]).shape[2]
    if positions < 1 or side % positions:
        raise VitrailError(
            f"--positions {positions}: the feature map has {side}x{side} positions; give a number that divides {side}"
        )
    with one_thread():
        trained = _probes(run, run.trained, names, positions, lambda what: progress(f"trained: {what}"))
        # untrained networks are the same for all clients
        untrained = _probes(run, run.untrained, names[:1], positions, lambda what: progress(f"untrained: {what}"))
    return [Column("trained", "", "", {}, trained), Column("untrained", "", "", {}, untrained)]


def _probes(
    run: LoadedRun, nets: TrainedNetworks, styles: Sequence[str], positions: int, progress: Progress
) -> list[Measure]:
    views = run.views
    targets = _targets(views.train, views.test)
    hits: dict[tuple[str, str], list[Hits]] = {(what, kind): [] for what in targets for kind in ("content", "style")}
    phi_s: list[tuple[Tensor, Tensor]] = []  # of each client: training and test images
    networks: list[tuple[str, str, Features]] = [("content", "content", nets.content)]
    networks += [("style", f"{name}'s style", partial(nets.style, name)) for name in styles]
    for kind, source, features in networks:
        progress(f"features of {source}")
        maps = [features(x, positions) for x in (views.train.x, views.test.x)]
        phi = [m.unflatten(1, (-1, positions**2)).mean(2) for m in maps]  # means over positions
        for what, (labels, truth) in targets.items():
            progress(f"probe of the {what} from {source}")
            fit, test = maps if what == "label" else phi
            hits[what, kind].append(probe(fit, labels, test, truth))
        if kind == "style":
            phi_s.append((phi[0], phi[1]))
    found: list[Measure] = []
    for what, (labels, truth) in targets.items():
        at = f" at {positions}x{positions} positions" if what == "label" and positions > 1 else ""
        notes = {
            "content": f"φ^c{at}, shared by all clients",
            "style": f"φ^s{at} of one client, on images of all clients; mean over clients",
        }
        results = {kind: (note, np.mean(hits[what, kind], 0)) for kind, note in notes.items()}
        if what == "client":
            progress("probe of the client from style of all")
            phi_s *= len(views.names) // len(phi_s)
            every = [torch.stack([pair[k] for pair in phi_s], 1) for k in (0, 1)]
            correct = probe_scalar_per_client(every[0], labels, every[1], truth)
            results["style of all"] = ("one number from each client's φ^s (Appendix C.2.2)", correct)
        for name, (note, correct) in results.items():
            bounded = mean_over_images(correct, views.test.source)
            sizes = len(correct), len(labels)
            found.append(Measure(f"{what} from {name}", *bounded, *sizes, "higher", f"the {what}", note))
    return found


def _targets(train: View, test: View) -> Mapping[str, tuple[Tensor, Tensor]]:
    """Return what is predicted: true values on training and test images."""
    targets = {"client": (as_tensor(train.client), as_tensor(test.client))}
    if train.images.labels is not None and test.images.labels is not None:
        targets = {"label": (as_tensor(train.images.labels), as_tensor(test.images.labels)), **targets}
    return targets


def probe_scalar_per_client(fit: Tensor, fit_labels: Tensor, test: Tensor, test_labels: Tensor) -> Hits:
    """Probe of Appendix C.2.2: features (n, clients, d) to one number per client, then linear to logits.

    Returns:
        1 for each test image whose prediction is correct, else 0.
    """
    mean, std = fit.mean(0), fit.std(0) + 1e-6
    classes = int(fit_labels.max()) + 1
    draw = Rng((0,)).child("squeezed").torch()
    u = nn.Parameter(torch.randn(fit.shape[1:], generator=draw) / fit.shape[2] ** 0.5)
    w = nn.Parameter(torch.randn(fit.shape[1], classes, generator=draw) / fit.shape[1] ** 0.5)
    b = nn.Parameter(torch.zeros(classes))
    optimizer = torch.optim.AdamW([u, w, b], 0.02, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=STEPS)

    def logits(x: Tensor) -> Tensor:
        return ((x - mean) / std * u).sum(2) @ w + b

    for _ in range(STEPS):
        loss = F.cross_entropy(logits(fit), fit_labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return np.asarray((logits(test).argmax(1) == test_labels).double().numpy())


def draw_probes(columns: Sequence[Column], path: Path) -> None:
    """Write a bar chart of probe accuracies with their intervals: trained next to untrained."""
    from matplotlib.figure import Figure

    names = [m.name for m in columns[0].measures]
    figure = Figure(figsize=(6.4, 0.8 + 0.5 * len(names)), layout="constrained")
    ax = figure.subplots()
    height = 0.8 / len(columns)
    for k, column in enumerate(columns):
        y = [i + k * height for i in range(len(names))]
        values = [m.value for m in column.measures]
        errors = [[m.value - m.low for m in column.measures], [m.high - m.value for m in column.measures]]
        ax.barh(y, values, height, xerr=errors, color=f"C{k}", alpha=0.85, label=column.name, error_kw={"linewidth": 1})
        for at, m in zip(y, column.measures, strict=True):
            ax.text(0.01, at, f"{m.value:.3f}", va="center", fontsize=7, color="white")
    ax.set_yticks([i + (len(columns) - 1) * height / 2 for i in range(len(names))], names, fontsize=8)
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    ax.set_xlabel("accuracy on held-out images")
    ax.legend(fontsize=8, ncols=2, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=90, format="png")


KS = (1, 10, 50)


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
    columns, views = [], (every.take(fit), every.take(held_out))
    with one_thread():
        for name, nets in (("trained", run.trained), ("untrained", run.untrained)):
            progress(name)
            columns.append(Column(name, "", "", {}, _identity_measures(run, nets, *views)))
    return columns


def split_each_identity(identities: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return indices to fit on and to test on; each person with two or more images is in both, alternately.

    >>> [part.tolist() for part in split_each_identity(np.array([7, 7, 9, 5, 7, 5]))]
    [[0, 3, 4], [1, 5]]
    """
    counts: Counter[int] = Counter()
    nth = np.zeros(len(identities), np.int64)
    for k, person in enumerate(identities):
        nth[k] = counts[person]
        counts[person] += 1
    several = np.array([counts[person] > 1 for person in identities], np.bool_)
    return np.flatnonzero(several & (nth % 2 == 0)), np.flatnonzero(several & (nth % 2 == 1))


def _identity_measures(run: LoadedRun, nets: TrainedNetworks, fit: View, test: View) -> list[Measure]:
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


def top_k_hits(
    fit: Tensor, fit_labels: Tensor, test: Tensor, test_labels: Tensor, ks: Sequence[int]
) -> dict[int, NDArray[np.float64]]:
    """For each k, return whether the true label is among the k most likely ones of a linear probe.

    All test labels must occur among those that the probe is fitted on.
    """
    model = fitted_probe(fit, fit_labels)
    scores = np.asarray(model.decision_function(test.numpy()))
    if scores.ndim == 1:  # two classes
        scores = np.stack([-scores, scores], 1)
    column = np.searchsorted(model.classes_, test_labels.numpy())
    own = scores[np.arange(len(scores)), column]
    better = (scores > own[:, None]).sum(1)
    return {k: np.asarray(better < k, np.float64) for k in ks}
