"""Plot of a partition: the number of images of each class and client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.dataset import Dataset
from vitrail.data.partitions import Partition

_LARGE, _SMALL = 30, 150  # maximum numbers of rows with large and with small letters


def counts(partition: Partition, data: Dataset) -> NDArray[np.int64]:
    """Count the images of each client (row) and class (column); without labels, there is one column."""
    labels = data.train.labels
    if labels is None:
        return np.array([[len(own)] for own in partition.indices], np.int64)
    classes = len(data.classes) or int(labels.max()) + 1
    return np.stack([np.bincount(labels[own], minlength=classes) for own in partition.indices]).astype(np.int64)


def plot_partition(partition: Partition, data: Dataset, path: Path | str) -> None:
    """Write a PNG with one row per client and one for the server: a map over classes and a bar for the total.

    Args:
        partition: The partition.
        data: The data set that it divides.
        path: The file to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    table = counts(partition, data)
    names = list(partition.names)
    if len(partition.server):
        own = Partition("", ("server",), (partition.server,), partition.server[:0])
        table, names = np.concatenate([table, counts(own, data)]), [*names, "server"]
    rows, columns = table.shape
    mapped = data.train.labels is not None
    height = 1.6 + rows * (0.32 if rows <= _LARGE else 0.16 if rows <= _SMALL else 0.03)
    width = 2.2 + (min(12.0, max(3.0, 0.55 * columns)) if mapped else 0)
    figure = Figure(figsize=(width + 2.4, min(height, 60.0)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{data.name}, {partition.spec}: {len(partition)} clients", fontsize=11)
    axes = figure.subplots(1, 1 + mapped, squeeze=False, width_ratios=[width, 2.4] if mapped else None)[0]
    if mapped:
        _map(axes[0], table, data.classes)
    _bars(axes[-1], table.sum(axis=1))
    every = 1 if rows <= _SMALL else rows // 40
    axes[0].set_yticks(range(0, rows, every), names[::every], fontsize=8 if rows <= _LARGE else 6)
    if mapped:
        axes[1].set_yticks([])
    for ax in axes:
        ax.set_ylim(rows - 0.5, -0.5)
    figure.savefig(Path(path), dpi=110, format="png")


def _map(ax: Any, table: NDArray[np.int64], classes: tuple[str, ...]) -> None:
    rows, columns = table.shape
    shade = np.sqrt(table / max(1, table.max()))  # square root: small counts stay visible next to large ones
    ax.imshow(shade, cmap="Blues", vmin=0, vmax=1.1, aspect="auto", interpolation="nearest")
    labels = classes or tuple(str(k) for k in range(columns))
    long = max(len(name) for name in labels) > 3
    ax.set_xticks(range(columns), labels, fontsize=8, rotation=45 if long else 0, ha="right" if long else "center")
    ax.set_xlabel("class")
    ax.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    ax.grid(which="minor", color="white", linewidth=1.2 if rows <= _LARGE else 0.4 if rows <= _SMALL else 0)
    ax.tick_params(which="both", length=0)
    for side in ax.spines.values():
        side.set_visible(False)
    if columns <= _LARGE and rows <= _SMALL:
        size = 7 if rows <= _LARGE else 5
        for i, k in zip(*np.nonzero(table), strict=True):
            ink = "white" if shade[i, k] > 0.65 else "black"
            ax.text(k, i, f"{table[i, k]}", ha="center", va="center", fontsize=size, color=ink)


def _bars(ax: Any, totals: NDArray[np.int64]) -> None:
    few = len(totals) <= _LARGE
    ax.barh(range(len(totals)), totals, height=0.8, color="#4878a8")
    for i, total in enumerate(totals if len(totals) <= _SMALL else ()):
        text, ink = (f" {total:,}", "black") if total else (" empty", "firebrick")
        ax.text(total, i, text, va="center", fontsize=7 if few else 5, color=ink)
    ax.set_xlim(0, max(1, totals.max()) * 1.3)
    ax.set_xlabel("images")
    ax.tick_params(axis="x", labelsize=7)
    ax.tick_params(axis="y", length=0)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
