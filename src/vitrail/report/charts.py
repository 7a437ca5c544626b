"""Draw curves as SVG with the colors, fonts and width of the page; equal numbers give equal bytes."""

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

COLORS = 7  # --c1 to --c7 in page.css
_DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)))
_MARKS = "os^Dv<>"
_POINTS, _MARKED = 600, 24  # largest number of points of a line; largest number of points with markers
# Placeholders for Matplotlib, replaced by the page's CSS variables.
_INK, _FAINT = "#010203", "#040506"
_LINES = [f"#0708{i:02x}" for i in range(1, COLORS + 1)]
_VARIABLES = {_INK: "var(--ink-soft)", _FAINT: "var(--rule)"} | {c: f"var(--c{i})" for i, c in enumerate(_LINES, 1)}


@dataclass(frozen=True)
class Line:
    """Points of one curve; `color` counts the page's colors from 0, and beyond them lines are dashed."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: int = 0
    dash: int = 0
    ring: bool = False  # one point, marked with a ring

    @property
    def style(self) -> str:
        """CSS classes of the line in a legend."""
        return f"c{self.color % COLORS + 1} dash{(self.dash + self.color // COLORS) % len(_DASHES)}"


@dataclass(frozen=True)
class Axis:
    """Label, unit and scale of an axis."""

    label: str
    unit: Literal["number", "bytes", "round"] = "number"
    log: bool | None = None  # None: if values span two decades
    from_zero: bool = False  # for amounts, whose curves mislead if the axis does not start at zero


@dataclass(frozen=True)
class Chart:
    """A chart with its title and a text alternative."""

    title: str
    svg: str
    description: str
    legend: Sequence[Line] = ()


def draw(title: str, lines: Sequence[Line], x: Axis, y: Axis, name: str, *, legend: bool = True) -> Chart:
    """Draw lines as one chart.

    Args:
        title: Title of the chart.
        lines: Curves; empty ones are omitted.
        x: Horizontal axis.
        y: Vertical axis.
        name: Prefix of ids in the SVG, unique on the page.
        legend: Whether the chart has a legend, if there are several lines.
    """
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
        **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
        "axes.grid": True,
        "grid.color": _FAINT,
        "axes.axisbelow": True,
    }
    lines = [line for line in lines if len(line.x)]
    with matplotlib.style.context("default"), matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glyphs missing in Matplotlib's font; the page uses other fonts
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
    description = "; ".join(_describe(line, x) for line in lines if not line.ring)
    return Chart(
        title, _for_page(file.getvalue(), name), description, [ln for ln in lines if legend and len(lines) > 1]
    )


def _plot(ax: Any, line: Line) -> None:
    points = thinned(list(zip(line.x, line.y, strict=True)), _POINTS)
    ax.plot(
        *zip(*points, strict=True),
        color=_LINES[line.color % COLORS],
        linestyle=_DASHES[(line.dash + line.color // COLORS) % len(_DASHES)],
        linewidth=1.8,
        marker="o" if line.ring else _MARKS[line.color % len(_MARKS)] if len(points) <= _MARKED else None,
        markersize=11 if line.ring else 3.6,
        markerfacecolor="none" if line.ring else None,
        markeredgewidth=1.6 if line.ring else 0,
    )


def _scale(axis: Any, set_scale: Any, what: Axis, values: Sequence[float]) -> None:
    """Set readable ticks, and a log scale if values span decades."""
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


def _describe(line: Line, x: Axis) -> str:
    """Describe the ends of a curve, for screen readers."""

    def at(i: int) -> str:
        where = size(line.x[i]) if x.unit == "bytes" else f"{x.label} {number(line.x[i])}"
        return f"{number(line.y[i])} at {where}"

    return f"{line.name}: {at(0)}" + (f", {at(-1)}" if len(line.x) > 1 else "")


def _for_page(svg: str, name: str) -> str:
    """Remove size, fonts and document header from an SVG, and use the page's colors and unique ids."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r'\1 aria-hidden="true" focusable="false"', svg, count=1)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(href="|url\()#', rf"\1#{name}-", svg)
    svg = re.sub(r"\s*\n\s*", " ", svg)
    return re.sub("|".join(_VARIABLES), lambda found: _VARIABLES[found[0]], svg)
