"""Text of a measure's value and its confidence interval."""

from __future__ import annotations

from math import isfinite

from vitrail.metrics.measure import Measure
from vitrail.utils.quantities import number


def interval(m: Measure) -> str:
    """Return the bounds of a measure, or an empty text if it has none."""
    return f"{number(m.low)} to {number(m.high)}" if isfinite(m.low) and isfinite(m.high) else ""


def with_interval(m: Measure) -> str:
    """Return the value of a measure with its bounds in brackets.

    Examples:
        >>> with_interval(Measure("fd", 12.34, 11.0, 13.6, 1000, 5000, "lower", "vitrail-cifar"))
        '12.3 (11 to 13.6)'
    """
    return number(m.value) + (f" ({interval(m)})" if interval(m) else "")
