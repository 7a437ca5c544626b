"""Format bytes, seconds, counts and measures for output."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB")


def size(n: float) -> str:
    """Format bytes with a suitable unit.

    >>> size(999), size(20_480), size(3_500_000)
    ('999 B', '20.5 kB', '3.5 MB')
    """
    power = 0
    while round(n, 1) >= 1000 and power < len(_UNITS) - 1:
        n, power = n / 1000, power + 1
    return f"{n:.1f} {_UNITS[power]}" if power else f"{n:.0f} B"


def duration(seconds: float) -> str:
    """Format a duration in at most two units.

    >>> duration(0.25), duration(12.34), duration(165), duration(7320)
    ('0.25 s', '12.3 s', '2 min 45 s', '2 h 2 min')
    """
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def number(value: float) -> str:
    """Format a value with three significant digits, or as an integer from 1000 on.

    >>> number(88872.3), number(0.774768), number(12.0), number(2e-7)
    ('88,872', '0.775', '12', '2e-07')
    """
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def whole(value: float) -> str:
    """Format a duration or count as an integer; a value below one is not shown as none.

    >>> whole(12.4), whole(0.3), whole(0)
    ('12', '<1', '0')
    """
    return "<1" if 0 < value < 1 else f"{value:.0f}"


def plural(n: int, noun: str) -> str:
    """Format a count with its noun.

    >>> plural(1, "round"), plural(1200, "client")
    ('1 round', '1,200 clients')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
