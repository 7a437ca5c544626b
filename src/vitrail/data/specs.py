"""Parsing of the settings `data=` and `partition=`, before any data is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vitrail.data.partitions import PARTITIONS
from vitrail.data.sources import SOURCES
from vitrail.data.transforms import DOMAINS, TRANSFORMS
from vitrail.utils.errors import VitrailError, nearest

CIFAR_BATCHES = (1, 2, 3, 4, 5)

# How to write the arguments of built-in entries; "" has none. Registered entries accept any argument.
_SOURCE_FORMS = {"folder": "folder:PATH", "npz": "npz:PATH", "hf": "hf:NAME"}
_SOURCE_FORMS |= dict.fromkeys(("mnist5k", "digits", "mnist", "fashion-mnist", "svhn", "celeba"), "")
_PARTITION_FORMS = {
    "bootstrap": "bootstrap:SHARE",
    "shards": "shards:N",
    "dirichlet": "dirichlet:ALPHA[:ATTRIBUTE]",
    "classes": "classes:N or classes:0-1,2-4,5-9",
    "skew": "skew:P",
    "attribute": "attribute:NAME",
    "domains": "domains:mnist8, domains:mnist8:SHARE or domains:invert,blur,rotate",
}
_PARTITION_FORMS |= dict.fromkeys(("iid", "attributes", "folders"), "")


@dataclass(frozen=True)
class SourceSpec:
    """A parsed `data=` setting, `name` or `name:argument`.

    Args:
        name: Name of the source.
        argument: The text after the first colon.
    """

    name: str
    argument: str = ""

    def __str__(self) -> str:
        return f"{self.name}:{self.argument}" if self.argument else self.name


def parse_source(spec: str) -> SourceSpec:
    """Parse a `data=` setting.

    Args:
        spec: The name of a source in `SOURCES`, with a colon and an argument if it takes one.

    Raises:
        VitrailError: If there is no such source, or the argument is missing or invalid.

    Examples:
        >>> parse_source("folder:my/images")
        SourceSpec(name='folder', argument='my/images')
        >>> parse_source("minst")
        Traceback (most recent call last):
        vitrail.utils.errors.VitrailError: data=minst: there is no source minst; did you mean mnist?
    """
    name, colon, argument = spec.strip().partition(":")
    if name not in SOURCES:
        raise VitrailError(f"data={spec}: there is no source {name}; {nearest(name, SOURCES)}")
    form = _SOURCE_FORMS.get(name)
    if form and not argument:
        raise VitrailError(f"data={spec}: {name} needs an argument; write {form}")
    if form == "" and colon:
        raise VitrailError(f"data={spec}: {name} takes no argument; write data={name}")
    if name == "cifar10" and colon:
        cifar_batches(argument)
    return SourceSpec(name, argument)


def cifar_batches(argument: str) -> tuple[int, ...]:
    """Parse the argument of `cifar10:...`: the training batches to use; empty: all five.

    Examples:
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
            f"data=cifar10:{argument}: training batches are numbered 1 to 5; write cifar10 for all, "
            "cifar10:1 for the first or cifar10:1-3 for the first three"
        )
    return batches


def parse_set(text: str) -> tuple[int, ...]:
    """Parse integers and ranges that are joined by plus signs.

    Returns:
        The integers, sorted and without duplicates.

    Raises:
        ValueError: If the text has another form.

    Examples:
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
        raise ValueError(f"{text!r} is not an integer")
    return int(text)


@dataclass(frozen=True)
class PartitionSpec:
    """A parsed `partition=` setting; each built-in partition uses some of the fields.

    Args:
        text: The setting.
        name: Name of the partition.
        number: SHARE, ALPHA or P.
        count: N.
        attribute: Name of an attribute.
        sets: The classes of each client.
        domains: The transform of each client.
    """

    text: str
    name: str
    number: float = 0.0
    count: int = 0
    attribute: str = ""
    sets: tuple[tuple[int, ...], ...] = ()
    domains: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text

    @property
    def argument(self) -> str:
        """The text after the first colon."""
        return self.text.partition(":")[2]


def parse_partition(spec: str) -> PartitionSpec:
    """Parse a `partition=` setting.

    Args:
        spec: The name of a partition in `PARTITIONS`, with a colon and arguments if it takes some.

    Raises:
        VitrailError: If there is no such partition, or its arguments are missing or invalid.

    Examples:
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
    if name not in PARTITIONS:
        raise VitrailError(f"partition={spec}: there is no partition {name}; {nearest(name, PARTITIONS)}")
    form = _PARTITION_FORMS.get(name)
    try:
        if form and not argument:
            raise ValueError(f"{name} needs an argument")
        if form == "" and colon:
            raise ValueError(f"{name} takes no argument")
        return _with_argument(text, name, argument) if form else PartitionSpec(text, name)
    except ValueError as problem:
        raise VitrailError(f"partition={spec}: {problem}; write {form or name}") from None


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
    """Return the transforms of a named list, or of a list of names."""
    if text in DOMAINS:
        return DOMAINS[text]
    names = tuple(text.split(","))
    for name in names:
        if name not in TRANSFORMS:
            raise ValueError(f"there is no transform or list {name!r}, {nearest(name, [*TRANSFORMS, *DOMAINS])}")
    if len(set(names)) < len(names):
        raise ValueError("a transform occurs twice")
    return names


def _number(what: str, text: str, *, zero: bool = False, most: float = math.inf) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{what} must be a number, got {text!r}") from None
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero) or value > most:
        low = "at least 0" if zero else "more than 0"
        raise ValueError(f"{what} must be {low}{f' and at most {most:g}' if most < math.inf else ''}, got {text}")
    return value
