"""Linear probes: what a straight line can read off the features of content, φ^c, and of style, φ^s.

All probes are fitted on the clients' own training pictures and scored on held-out ones. Each client has its own
φ^s_i, so a client could be told by whose network a feature came from; here every network sees everybody's pictures,
and knows of nobody whose they are. "Style" is the mean over clients of what one client's φ^s_i tells: as many features
as content has, fitted on the same pictures. PaDPaF's own way to predict the client (Appendix C.2.2) takes one number
from each client's φ^s_i: that is "style of all".

φ is a mean over places, and a label is in where strokes are. `places` reads labels before it: off means over so many by
so many places, as features of GANs' discriminators are usually probed (Radford, Metz, Chintala; 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.analysis.trained import Opened, Trained
from vitrail.analysis.views import View, as_tensor, mean_over_pictures
from vitrail.metrics.distances import probe
from vitrail.metrics.measure import Measure
from vitrail.metrics.results_io import Column
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng

Hits = NDArray[np.float64]
Tell = Callable[[str], None]
Features = Callable[[Tensor, int], Tensor]
STEPS = 600


def probe_run(opened: Opened, tell: Tell = lambda _: None, places: int = 1) -> list[Column]:
    """Labels and clients from content and from style; trained, and before the first round."""
    if len(opened.views.names) < 2:
        raise VitrailError("there is one client alone, so nothing tells it from others; take a run with two or more")
    side = opened.trained.D_c.map(opened.views.test.x[:1]).shape[2]
    if places < 1 or side % places:
        raise VitrailError(f"--places {places}: φ has {side}x{side} places; give a number that divides {side}")
    names = opened.views.names
    columns = []
    for name, nets, styles in (
        ("trained", opened.trained, names),
        ("untrained", opened.untrained, names[:1]),  # all have the same
    ):
        with one_thread():
            measures = _probes(opened, nets, styles, places, lambda what, name=name: tell(f"{name}: {what}"))  # type: ignore[misc]
        columns.append(Column(name, "", "", {}, measures))
    return columns


def _probes(opened: Opened, nets: Trained, styles: Sequence[str], places: int, tell: Tell) -> list[Measure]:
    views = opened.views
    asked = _questions(views.train, views.test)
    hits: dict[tuple[str, str], list[Hits]] = {(what, who): [] for what in asked for who in ("content", "style")}
    phi: list[tuple[Tensor, Tensor]] = []  # of style, of each client
    networks: list[tuple[str, str, Features]] = [("content", "content", nets.content)]
    networks += [("style", f"{name}'s style", partial(nets.style, name)) for name in styles]
    for kind, who, features in networks:
        tell(f"features of {who}")
        there = [features(x, places) for x in (views.train.x, views.test.x)]
        means = [_mean(at_places, places) for at_places in there]
        for what, (labels, truth) in asked.items():
            tell(f"probe of the {what} from {who}")
            fit, test = there if what == "label" else means
            hits[what, kind].append(probe(fit, labels, test, truth))
        if kind == "style":
            phi.append((means[0], means[1]))
    found: list[Measure] = []
    for what, (labels, truth) in asked.items():
        at = f" at {places}x{places} places" if what == "label" and places > 1 else ""
        how = {
            "content": (f"φ^c{at}, which all share", np.mean(hits[what, "content"], 0)),
            "style": (
                f"φ^s{at} of one client, on everybody's pictures; mean over clients",
                np.mean(hits[what, "style"], 0),
            ),
        }
        if what == "client":
            tell("probe of the client from style of all")
            phi *= len(views.names) // len(phi)
            all_ = [torch.stack([pair[k] for pair in phi], 1) for k in (0, 1)]
            right = squeezed(all_[0], labels, all_[1], truth)
            how["style of all"] = ("one number from each client's φ^s (Appendix C.2.2)", right)
        for name, (note, right) in how.items():
            bounded = mean_over_pictures(right, views.test.shows)
            sizes = len(right), len(labels)
            found.append(Measure(f"{what} from {name}", *bounded, *sizes, "higher", f"the {what}", note))
    return found


def _mean(features: Tensor, places: int) -> Tensor:
    """φ itself from its means at places."""
    out: Tensor = features.unflatten(1, (-1, places**2)).mean(2)
    return out


def _questions(train: View, test: View) -> Mapping[str, tuple[Tensor, Tensor]]:
    """What is asked, with the answers on both sets."""
    asked = {"client": (as_tensor(train.client), as_tensor(test.client))}
    if train.pictures.labels is not None and test.pictures.labels is not None:
        asked = {"label": (as_tensor(train.pictures.labels), as_tensor(test.pictures.labels)), **asked}
    return asked


def squeezed(fit: Tensor, fit_labels: Tensor, test: Tensor, test_labels: Tensor) -> Hits:
    """Features (n, clients, d) to one number for each client, then linear to logits: C.2.2's probe."""
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


def top(fit: Tensor, fit_labels: Tensor, test: Tensor, test_labels: Tensor, ks: Sequence[int]) -> dict[int, Hits]:
    """For each k, whether the truth is among the k likeliest by a linear probe; nobody unknown is asked for."""
    from vitrail.metrics.distances import fitted_probe

    model = fitted_probe(fit, fit_labels)
    scores = np.asarray(model.decision_function(test.numpy()))
    if scores.ndim == 1:  # two classes
        scores = np.stack([-scores, scores], 1)
    place = np.searchsorted(model.classes_, test_labels.numpy())
    own = scores[np.arange(len(scores)), place]
    better = (scores > own[:, None]).sum(1)
    return {k: np.asarray(better < k, np.float64) for k in ks}


def draw_probes(columns: Sequence[Column], path: Path) -> None:
    """Bars of what each probe reads, with their intervals: a pair for each question, trained and untrained."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [m.name for m in columns[0].measures]
    figure = Figure(figsize=(6.4, 0.8 + 0.5 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.add_subplot()
    high = 0.8 / len(columns)
    for k, column in enumerate(columns):
        y = [i + k * high for i in range(len(names))]
        values = [m.value for m in column.measures]
        errors = [[m.value - m.low for m in column.measures], [m.high - m.value for m in column.measures]]
        ax.barh(y, values, high, xerr=errors, color=f"C{k}", alpha=0.85, label=column.name, error_kw={"linewidth": 1})
        for at, m in zip(y, column.measures, strict=True):
            ax.text(0.01, at, f"{m.value:.3f}", va="center", fontsize=7, color="white")
    ax.set_yticks([i + (len(columns) - 1) * high / 2 for i in range(len(names))], names, fontsize=8)
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    ax.set_xlabel("share of held-out pictures that are read rightly")
    ax.legend(fontsize=8, ncols=2, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=90, format="png")
