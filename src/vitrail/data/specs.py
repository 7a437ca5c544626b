"""Reading `data=` and `partition=` settings, before anything is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vitrail.data.catalog import DOMAINS, PARTITIONS, SOURCES
from vitrail.utils.errors import VitrailError, nearest

CIFAR_BATCHES = (1, 2, 3, 4, 5)


def _forms(catalog: dict[str, str]) -> dict[str, list[str]]:
    """The catalog's forms by their name, which is what stands before the first colon."""
    forms: dict[str, list[str]] = {}
    for form in catalog:
        forms.setdefault(form.partition(":")[0], []).append(form)
    return forms


@dataclass(frozen=True)
class SourceSpec:
    """A source of pictures: `name` or `name:argument`."""

    name: str
    argument: str = ""

    def __str__(self) -> str:
        return f"{self.name}:{self.argument}" if self.argument else self.name


def parse_source(spec: str) -> SourceSpec:
    """Read a data setting, or refuse it.

    >>> parse_source("folder:my/pictures")
    SourceSpec(name='folder', argument='my/pictures')
    >>> parse_source("minst")
    Traceback (most recent call last):
    vitrail.utils.errors.VitrailError: data=minst: there is no source minst; did you mean mnist?
    """
    name, colon, argument = spec.strip().partition(":")
    forms = _forms(SOURCES)
    if name not in forms:
        raise VitrailError(f"data={spec}: there is no source {name}; {nearest(name, forms)}")
    if name in ("folder", "npz", "hf"):
        if not argument:
            raise VitrailError(f"data={spec}: {name} needs an argument; write {forms[name][0]}")
    elif name == "cifar10":
        if colon:
            cifar_batches(argument)
    elif colon:
        raise VitrailError(f"data={spec}: {name} takes no argument; write data={name}")
    return SourceSpec(name, argument)


def cifar_batches(argument: str) -> tuple[int, ...]:
    """The train batches that a `cifar10:...` setting asks for; all five when it does not say.

    >>> cifar_batches(""), cifar_batches("1"), cifar_batches("1+3-5")
    ((1, 2, 3, 4, 5), (1,), (1, 3, 4, 5))
    """
    if not argument:
        return CIFAR_BATCHES
    try:
        batches = parse_set(argument)
    except ValueError:
        batches = ()
    if not batches or not set(batches) <= set(CIFAR_BATCHES):
        raise VitrailError(
            f"data=cifar10:{argument}: train batches are numbered 1 to 5; write cifar10 for all, "
            "cifar10:1 for the first or cifar10:1-3 for the first three"
        )
    return batches


def parse_set(text: str) -> tuple[int, ...]:
    """Numbers and ranges joined by plus signs, sorted and without repeats.

    >>> parse_set("0+3-5")
    (0, 3, 4, 5)
    """
    found: set[int] = set()
    for part in text.split("+"):
        first, dash, last = part.partition("-")
        low = _natural(first)
        high = _natural(last) if dash else low
        if high < low or high > 1_000_000:
            raise ValueError(f"{part} is not a range")
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def _natural(text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


@dataclass(frozen=True)
class PartitionSpec:
    """A way of dividing: its name, and those of its arguments that it takes."""

    text: str
    name: str
    number: float = 0.0  # SHARE, ALPHA or P
    count: int = 0  # N
    attribute: str = ""
    sets: tuple[tuple[int, ...], ...] = ()  # the classes of each client
    domains: tuple[str, ...] = ()  # the transform of each client

    def __str__(self) -> str:
        return self.text


def parse_partition(spec: str) -> PartitionSpec:
    """Read a partition setting, or refuse it.

    >>> parse_partition("dirichlet:0.3:Male").attribute
    'Male'
    >>> parse_partition("classes:0-1,2-4,5-9").sets
    ((0, 1), (2, 3, 4), (5, 6, 7, 8, 9))
    >>> parse_partition("shards:0")
    Traceback (most recent call last):
    vitrail.utils.errors.VitrailError: partition=shards:0: N must be at least 1, got 0; write shards:N
    """
    text = spec.strip()
    name, colon, argument = text.partition(":")
    forms = _forms(PARTITIONS)
    if name not in forms:
        raise VitrailError(f"partition={spec}: there is no partition {name}; {nearest(name, forms)}")
    try:
        if name in ("iid", "attributes", "folders"):
            if colon:
                raise ValueError(f"{name} takes no argument")
            return PartitionSpec(text, name)
        if not argument:
            raise ValueError(f"{name} needs an argument")
        return _with_argument(text, name, argument)
    except ValueError as problem:
        raise VitrailError(f"partition={spec}: {problem}; write {' or '.join(forms[name])}") from None


def _with_argument(text: str, name: str, argument: str) -> PartitionSpec:
    if name == "dirichlet":
        alpha, colon, attribute = argument.partition(":")
        if colon and not attribute:
            raise ValueError("the attribute is missing")
        return PartitionSpec(text, name, number=_number("ALPHA", alpha), attribute=attribute)
    if name == "attribute":
        return PartitionSpec(text, name, attribute=argument)
    if name == "bootstrap":
        return PartitionSpec(text, name, number=_number("SHARE", argument, most=1.0))
    if name == "skew":
        return PartitionSpec(text, name, number=_number("P", argument, zero=True, most=1.0))
    if name == "classes" and ("," in argument or "-" in argument or "+" in argument):
        return PartitionSpec(text, name, sets=tuple(parse_set(part) for part in argument.split(",")))
    if name == "domains":
        which, colon, share = argument.partition(":")
        number = _number("SHARE", share, most=1.0) if colon else 1.0
        return PartitionSpec(text, name, number=number, domains=_domains(which))
    count = _natural(argument)
    if count < 1:
        raise ValueError(f"N must be at least 1, got {argument}")
    return PartitionSpec(text, name, count=count)


def _domains(text: str) -> tuple[str, ...]:
    """The transforms of a set, or those that are named."""
    if text in DOMAINS:
        return DOMAINS[text]
    known = dict.fromkeys(name for names in DOMAINS.values() for name in names)
    named = tuple(text.split(","))
    for name in named:
        if name not in known:
            raise ValueError(f"there is no transform or set {name!r}, {nearest(name, [*known, *DOMAINS])}")
    if len(set(named)) < len(named):
        raise ValueError("a transform is named twice")
    return named


def _number(what: str, text: str, *, zero: bool = False, most: float = math.inf) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{what} must be a number, got {text!r}") from None
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero) or value > most:
        low = "at least 0" if zero else "more than 0"
        raise ValueError(f"{what} must be {low}{f' and at most {most:g}' if most < math.inf else ''}, got {text}")
    return value
