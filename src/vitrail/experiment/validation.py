"""Problems with settings as text: the setting, its value and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from vitrail.data.specs import parse_partition, parse_source
from vitrail.utils.errors import SIMILAR, VitrailError
from vitrail.utils.renamed import new_names

GIVEN = "given"  # data that was passed from Python
NODES = "nodes"  # data that only the nodes of a deployment have


@dataclass(frozen=True)
class Problem:
    """One problem with the settings."""

    setting: str
    value: Any
    remedy: str

    def __str__(self) -> str:
        value = repr(self.value) if isinstance(self.value, str) else self.value
        return f"{self.setting}{'' if value is None else f' = {value}'}: {self.remedy}"


class BadSettings(VitrailError):
    """All problems with the settings."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        n = len(problems)
        head = "1 problem with the settings:" if n == 1 else f"{n} problems with the settings:"
        super().__init__("\n  ".join([head, *map(str, problems)]))


def once(problems: list[Problem]) -> list[Problem]:
    """Return the first problem of each setting."""
    first = {p.setting: p for p in reversed(problems)}
    return [p for p in problems if first[p.setting] is p]


_WORDS: dict[str, Callable[[Any], str]] = {
    "greater_than_equal": lambda c: f"must be at least {c['ge']:g}",
    "greater_than": lambda c: f"must be more than {c['gt']:g}",
    "less_than_equal": lambda c: f"must be at most {c['le']:g}",
    "less_than": lambda c: f"must be less than {c['lt']:g}",
    "literal_error": lambda c: f"must be {c['expected']}",
    "int_parsing": lambda _: "must be an integer",
    "int_from_float": lambda _: "must be an integer",
    "int_type": lambda _: "must be an integer",
    "float_parsing": lambda _: "must be a number",
    "float_type": lambda _: "must be a number",
    "string_type": lambda _: "must be text",
    "string_too_short": lambda _: "must not be empty",
    "missing": lambda _: "is missing",
}


def explain(err: Any, model: type[BaseModel], method: str) -> Problem | None:
    """Return one of pydantic's errors about a method's settings as a problem; None if it is reported elsewhere."""
    key = str(err["loc"][0])
    if err["type"] == "extra_forbidden":
        near = new_names(key, model.model_fields) or difflib.get_close_matches(key, model.model_fields, 1, SIMILAR)
        hint = f"did you mean {near[0]}?" if near else f"`vitrail list {method}` shows all"
        return Problem(key, err["input"], f"not a setting; {hint}")
    if key == "method":
        return None  # reported where methods are looked up
    says = _WORDS.get(err["type"], lambda _: str(err["msg"]).lower())(err.get("ctx", {}))
    default = model.model_fields[key].get_default() if key in model.model_fields else None
    return Problem(key, err["input"], says + (f" (default {default})" if default not in (None, "") else ""))


def cross_checks(v: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield problems that pydantic does not find, such as those of several settings together.

    Args:
        v: The settings that are valid by themselves.
    """
    for name in ("size", "clients", "rounds", "clients_per_round", "quorum", "seed", "workers", "grids"):
        if isinstance(v.get(name), bool):
            yield Problem(name, v[name], "must be a number, not a boolean")
    for name, parse in (("data", parse_source), ("partition", parse_partition)):
        if isinstance(v.get(name), str) and v[name] not in (GIVEN, NODES):
            try:
                parse(v[name])
            except VitrailError as e:
                yield Problem(name, v[name], str(e).partition(": ")[2] or str(e))
    clients, per_round = v.get("clients"), v.get("clients_per_round")
    if isinstance(clients, int) and isinstance(per_round, int) and per_round > clients:
        yield Problem("clients_per_round", per_round, f"more than the clients ({clients}); omit it to select all")
    requested = per_round or clients
    if isinstance(requested, int) and isinstance(v.get("quorum"), int) and v["quorum"] > requested:
        yield Problem("quorum", v["quorum"], f"more than the clients per round ({requested})")
    if isinstance(v.get("workers"), int) and v["workers"] < 1:
        yield Problem("workers", v["workers"], "must be at least 1, or auto")
    size = v.get("size")
    if isinstance(size, int) and (size < 8 or size & (size - 1)):
        yield Problem("size", size, "must be 8, 16, 32, 64, ...: generators double 4x4 pixels")
