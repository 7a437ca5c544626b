"""Open registries: built-in entries, entries of installed plugins (entry points) and entries added by a decorator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from vitrail.utils.errors import VitrailError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """Objects of one kind by name. Nothing is imported before it is needed.

    Args:
        kind: What the entries are, in the singular ("method"); used in errors.
        group: Entry point group in which installed packages add entries ("vitrail.methods").
        builtin: Built-in entries: name -> ("module:attribute", one-line summary).

    Example:
        >>> shapes: Registry[int] = Registry("shape", "vitrail.doctest", {"square": ("math:floor", "four sides")})
        >>> @shapes.register("triangle", "three sides")
        ... def triangle() -> int:
        ...     return 3
        >>> list(shapes)
        ['square', 'triangle']
        >>> shapes["triangle"]()
        3
        >>> shapes["trangle"]
        Traceback (most recent call last):
        vitrail.utils.errors.VitrailError: trangle is not a shape; did you mean triangle?
    """

    def __init__(self, kind: str, group: str, builtin: Mapping[str, tuple[str, str]] | None = None) -> None:
        self.kind, self.group = kind, group
        self._builtin = dict(builtin or {})
        self._added: dict[str, tuple[T, str]] = {}
        self._plugins: dict[str, str] | None = None  # name -> "module:attribute"

    def register(self, name: str, summary: str = "") -> Callable[[T], T]:
        """Return a decorator that adds an entry under a name.

        Args:
            name: The name that settings, the command line and files use.
            summary: One line for `vitrail list`.

        Raises:
            VitrailError: If the name is already used by another object.
        """

        def add(entry: T) -> T:
            self.add(name, entry, summary)
            return entry

        return add

    def add(self, name: str, entry: T, summary: str = "") -> None:
        """Add an entry; adding the same class or function again, as a notebook cell does, replaces it."""
        present = self._added.get(name)
        if name in self._builtin or name in self._found() or (present and not _same(present[0], entry)):
            raise VitrailError(f"{self.kind} {name!r} is already registered; choose another name")
        self._added[name] = (entry, summary)

    def __getitem__(self, name: str) -> T:
        if name in self._added:
            return self._added[name][0]
        where = self._builtin[name][0] if name in self._builtin else self._found().get(name)
        if where is None:
            raise VitrailError(f"{name} is not a {self.kind}; {nearest(name, list(self))}")
        module, _, attribute = where.partition(":")
        found: T = getattr(import_module(module), attribute)
        return found

    def check(self, name: str) -> str:
        """Return the name if it is registered; for settings: `Annotated[str, AfterValidator(REGISTRY.check)]`.

        Raises:
            PydanticKnownError: If it is not; the message lists the known names and the nearest one.
        """
        if name in self:
            return name
        from pydantic_core import PydanticKnownError

        known = list(self)
        near = nearest(name, known)
        hint = f"; {near}" if near.startswith("did you mean") else ""
        raise PydanticKnownError("literal_error", {"expected": f"one of {', '.join(known)}{hint}"})

    def __contains__(self, name: object) -> bool:
        return name in self._added or name in self._builtin or name in self._found()

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys((*self._builtin, *self._found(), *self._added))

    def summary(self, name: str) -> str:
        """Return the one-line summary of an entry: what was registered, or the first line of its docstring."""
        if name in self._builtin:
            return self._builtin[name][1]
        if name in self._added and self._added[name][1]:
            return self._added[name][1]
        return (self[name].__doc__ or "").strip().partition("\n")[0]

    def _found(self) -> dict[str, str]:
        if self._plugins is None:
            self._plugins = {e.name: e.value for e in entry_points(group=self.group) if e.name not in self._builtin}
        return self._plugins


def _same(a: object, b: object) -> bool:
    """Whether two objects are the same class or function, perhaps defined again."""
    names = ("__module__", "__qualname__")
    return a is b or all(getattr(a, n, a) == getattr(b, n, b) for n in names)
