"""Curves as SVG that belongs to the page: its colours, its letters, its width; the same numbers give the same bytes."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from math import log10
from typing import Any, Literal

from vitrail.report.rounds import thinned
from vitrail.utils.quantities import number, size

COLOURS = 7  # --c1 to --c7 in page.css
_DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)))
_MARKS = "os^Dv<>"
_POINTS, _MARKED = 600, 24  # points a line has at most; points up to which each is marked
# Matplotlib is given these colours, and the page's own take their place.
_INK, _FAINT = "#010203", "#040506"
_LINES = [f"#0708{i:02x}" for i in range(1, COLOURS + 1)]
_VARIABLES = {_INK: "var(--ink-soft)", _FAINT: "var(--rule)"} | {c: f"var(--c{i})" for i, c in enumerate(_LINES, 1)}


@dataclass(frozen=True)
class Line:
    """Points of one curve; `colour` counts the page's colours from 0, further ones are dashed."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    dash: int = 0
    ring: bool = False  # a single point to be picked out

    @property
    def style(self) -> str:
        """The class that the legend's swatch has."""
        return f"c{self.colour % COLOURS + 1} dash{(self.dash + self.colour // COLOURS) % len(_DASHES)}"


@dataclass(frozen=True)
class Axis:
    """What an axis measures."""

    label: str
    unit: Literal["number", "bytes", "round"] = "number"
    log: bool | None = None  # None: where the values span two decades
    from_zero: bool = False  # an amount, whose curve would mislead if it did not start at nothing


@dataclass(frozen=True)
class Chart:
    """A drawn chart with its title, and in words what it shows."""

    title: str
    svg: str
    words: str
    legend: Sequence[Line] = ()


def draw(title: str, lines: Sequence[Line], x: Axis, y: Axis, name: str, *, legend: bool = True) -> Chart:
    """Draw lines; `name` keeps the ids of one chart apart from another's on the same page."""
    import matplotlib
    import matplotlib.style
    from matplotlib.figure import Figure

    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": "vitrail",
        "text.parse_math": False,
        "font.size": 10.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": _INK,
        "axes.labelcolor": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "axes.grid": True,
        "grid.color": _FAINT,
        "axes.axisbelow": True,
    }
    lines = [line for line in lines if len(line.x)]
    with matplotlib.style.context("default"), matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters that matplotlib's own font lacks: the page's fonts have them
        figure = Figure(figsize=(4.2, 2.8), layout="constrained")
        ax = figure.add_subplot()
        for line in lines:
            _plot(ax, line)
        ax.margins(x=0.04, y=0.08)
        _scale(ax.xaxis, ax.set_xscale, x, [v for line in lines for v in line.x])
        _scale(ax.yaxis, ax.set_yscale, y, [v for line in lines for v in line.y])
        if y.from_zero and ax.get_yscale() == "linear":
            ax.set_ylim(bottom=0)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    words = "; ".join(_words(line, x) for line in lines if not line.ring)
    return Chart(title, _for_page(file.getvalue(), name), words, [ln for ln in lines if legend and len(lines) > 1])


def _plot(ax: Any, line: Line) -> None:
    points = thinned(list(zip(line.x, line.y, strict=True)), _POINTS)
    ax.plot(
        [x for x, _ in points],
        [y for _, y in points],
        color=_LINES[line.colour % COLOURS],
        linestyle=_DASHES[(line.dash + line.colour // COLOURS) % len(_DASHES)],
        linewidth=1.8,
        marker="o" if line.ring else _MARKS[line.colour % len(_MARKS)] if len(points) <= _MARKED else None,
        markersize=11 if line.ring else 3.6,
        markerfacecolor="none" if line.ring else None,
        markeredgewidth=1.6 if line.ring else 0,
    )


def _scale(axis: Any, set_scale: Any, what: Axis, values: Sequence[float]) -> None:
    """Ticks that a person reads, on a log scale where values span decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    low, high = min(values, default=0.0), max(values, default=1.0)
    log = low > 0 and (high / low >= 100 if what.log is None else what.log)
    decades = log10(high / low) if log else 0.0
    if log:
        set_scale("log")
    if decades > 0.8:
        axis.set_major_locator(LogLocator(subs=(1.0,) if decades > 2.5 else (1.0, 3.0), numticks=8))
    elif log and high == low:
        axis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    else:
        axis.set_major_locator(MaxNLocator(4, integer=what.unit == "round"))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda v, _: _tick(v, what.unit)))
    axis.set_tick_params(length=0)
    axis.set_label_text(what.label)


def _tick(value: float, unit: str) -> str:
    if unit == "bytes":
        return size(value).replace(".0 ", " ")
    if unit == "round":
        return f"{value:.0f}"
    return f"{value / 1000:g}k" if 10_000 <= abs(value) < 1e6 else f"{value:g}"


def _words(line: Line, x: Axis) -> str:
    """The ends of a curve, for those who do not see it."""

    def at(i: int) -> str:
        where = size(line.x[i]) if x.unit == "bytes" else f"{x.label} {number(line.x[i])}"
        return f"{number(line.y[i])} at {where}"

    return f"{line.name}: {at(0)}" + (f", {at(-1)}" if len(line.x) > 1 else "")


def _for_page(svg: str, name: str) -> str:
    """A drawing without a size, fonts, colours, ids and document of its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r'\1 aria-hidden="true" focusable="false"', svg, count=1)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(href="|url\()#', rf"\1#{name}-", svg)
    svg = re.sub(r"\s*\n\s*", " ", svg)
    return re.sub("|".join(_VARIABLES), lambda found: _VARIABLES[found[0]], svg)
