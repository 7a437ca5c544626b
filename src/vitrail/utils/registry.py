"""Open registries: built-in entries, entries of installed plugins (entry points) and entries added by a decorator.

Modules named in the environment variable VITRAIL_PLUGINS (comma-separated) are imported before the first lookup, so
that the classes they register are known to the command line, worker processes and Flower.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from vitrail.utils.errors import VitrailError, nearest

T = TypeVar("T")
_LOG = logging.getLogger("vitrail")
PLUGINS = "VITRAIL_PLUGINS"  # environment variable: modules to import, separated by commas
REGISTRIES: dict[str, Registry[Any]] = {}  # every registry by its entry point group
_imported: set[str] = set()
_importing: list[str] = []  # the modules of VITRAIL_PLUGINS that are being imported
_from_plugins: set[tuple[str, str]] = set()  # entries that such a module added: any process finds them by itself
_pending: dict[str, list[tuple[str, Any, str]]] = {}  # entries of another process whose registry is not imported yet


class Registry(Generic[T]):
    """Objects of one kind by name. Nothing is imported before it is needed.

    Args:
        kind: What the entries are, in the singular ("method"); used in errors.
        group: Entry point group in which installed packages add entries ("vitrail.methods").
        builtin: Built-in entries: name -> ("module:attribute", one-line summary).

    Examples:
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
        self._clashes: dict[str, str] = {}  # names that plugins use for another object -> error
        if group != "vitrail.doctest":
            REGISTRIES[group] = self
            for entry in _pending.pop(group, []):
                self.add(*entry)

    def register(self, name: str, summary: str = "") -> Callable[[T], T]:
        """Return a decorator that adds an entry under a name.

        Args:
            name: The name that settings, the command line and files use.
            summary: One line for `vitrail list`.

        Returns:
            A decorator that returns the entry unchanged.

        Raises:
            VitrailError: If the name is already used by another object.
        """

        def add(entry: T) -> T:
            self.add(name, entry, summary)
            return entry

        return add

    def add(self, name: str, entry: T, summary: str = "") -> None:
        """Add an entry; adding the same class or function again, as a notebook cell does, replaces it.

        Args:
            name: The name that settings, the command line and files use.
            entry: The object.
            summary: One line for `vitrail list`.

        Raises:
            VitrailError: If the name is already used by another object.
        """
        present, plugin = self._added.get(name), self._found(imports=False).get(name)
        mine = f"{getattr(entry, '__module__', '')}:{getattr(entry, '__qualname__', '')}"
        if name in self._builtin or (plugin and plugin != mine) or (present and not _same(present[0], entry)):
            raise VitrailError(f"{self.kind} {name!r} is already registered; choose another name")
        self._added[name] = (entry, summary)
        if _importing:
            _from_plugins.add((self.group, name))

    def name_of(self, entry: T) -> str:
        """Return the name of an object; one that is not registered is added under a name derived from its own.

        Args:
            entry: The object.

        Returns:
            The registered name.

        Raises:
            VitrailError: If the derived name is already used by another object.

        Examples:
            >>> shapes: Registry[type] = Registry("shape", "vitrail.doctest")
            >>> shapes.name_of(type("RedSquare", (), {}))
            'red-square'
        """
        for name, (known, _) in self._added.items():
            if _same(known, entry):
                self.add(name, entry, self._added[name][1])  # a notebook cell may have defined it again
                return name
        for name in (*self._builtin, *self._found()):
            module, _, attribute = self._where(name).partition(":")
            if module in sys.modules and getattr(sys.modules[module], attribute) is entry:
                return name
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", getattr(entry, "__name__", str(entry))).lower()
        self.add(name, entry)
        return name

    def added(self, name: str) -> T | None:
        """Return the entry of this name if it was added in this process; None if any process finds it by itself.

        Args:
            name: The name of the entry.

        Returns:
            The entry, or None.
        """
        found = name in self._found() or (self.group, name) in _from_plugins
        return self._added[name][0] if name in self._added and not found else None

    def is_builtin(self, name: str) -> bool:
        """Return whether an entry is part of this package.

        Args:
            name: The name of the entry.

        Returns:
            Whether it is.
        """
        return name in self._builtin

    def _where(self, name: str) -> str:
        """Return the "module:attribute" of a built-in entry or a plugin; empty: it is neither."""
        found = self._found()
        return self._builtin[name][0] if name in self._builtin else found.get(name, "")

    def __getitem__(self, name: str) -> T:
        where = self._where(name)
        if name in self._clashes:
            raise VitrailError(self._clashes[name])
        if name in self._added:
            return self._added[name][0]
        if not where:
            raise VitrailError(f"{name} is not a {self.kind}; {nearest(name, list(self))}")
        module, _, attribute = where.partition(":")
        return getattr(import_module(module), attribute)

    def check(self, name: str, *others: str) -> str:
        """Return the name if it is registered; for settings: `Annotated[str, AfterValidator(REGISTRY.check)]`.

        A setting with this validator accepts a class in place of its name, from Python.

        Args:
            name: The name of the entry.
            *others: Further values that are allowed.

        Returns:
            The name.

        Raises:
            PydanticKnownError: If it is not; the message lists the known names and the nearest one.
        """
        if name in self or name in others:
            return name
        from pydantic_core import PydanticKnownError

        known = [*others, *self]
        near = nearest(name, known)
        hint = f"; {near}" if near.startswith("did you mean") else ""
        own = f"; for one of your own, list the module that registers it in {PLUGINS}"
        raise PydanticKnownError("literal_error", {"expected": f"one of {', '.join(known)}{hint}{own}"})

    def check_or_auto(self, name: str) -> str:
        """Return the name if it is registered or "auto"; the validator of a setting that the data may decide.

        Args:
            name: The name of the entry, or "auto".

        Returns:
            The name.

        Raises:
            PydanticKnownError: If it is neither.
        """
        return self.check(name, "auto")

    def __contains__(self, name: object) -> bool:
        return name in self._builtin or name in self._found() or name in self._added

    def __iter__(self) -> Iterator[str]:
        found = self._found()
        yield from dict.fromkeys((*self._builtin, *found, *self._added))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def summary(self, name: str) -> str:
        """Return the one-line summary of an entry: what was registered, or the first line of its docstring.

        Args:
            name: The name of the entry.

        Returns:
            The summary; if the entry cannot be used, the reason.
        """
        self._found()
        if name in self._clashes:
            return f"cannot be used: {self._clashes[name]}"
        if text := (self._builtin.get(name) or self._added.get(name) or ("", ""))[1]:
            return text
        try:
            text = (self[name].__doc__ or "").strip().partition("\n")[0]
            return "" if text.startswith(f"{getattr(self[name], '__name__', '')}(") else text  # dataclasses generate it
        except (ImportError, AttributeError) as e:  # a broken plugin must not hide the others
            return f"cannot be imported: {e}"

    def _found(self, imports: bool = True) -> dict[str, str]:
        """Return the entry points of plugins; one that has the name of another object makes this name an error.

        To register a class imports no plugin: its module may be one that another plugin is about to import from.
        """
        if imports:
            _import_plugins()
        if self._plugins is None:
            self._plugins = {}
            for e in entry_points(group=self.group):
                known = self._builtin.get(e.name, ("",))[0] or self._plugins.get(e.name, "")
                if known and known != e.value:
                    self._clashes[e.name] = (
                        f"{self.kind} {e.name!r} is {known}, but an installed package has an entry point {e.value} of "
                        f"this name in {self.group}; rename the entry point or uninstall the package"
                        f"{f' ({e.dist.name})' if e.dist else ''}"
                    )
                elif not known:
                    self._plugins[e.name] = e.value
        return self._plugins


def _import_plugins() -> None:
    """Import the modules of VITRAIL_PLUGINS, each once."""
    names = (m.strip() for m in os.environ.get(PLUGINS, "").split(","))
    modules = [m for m in dict.fromkeys(names) if m and m not in _imported]
    _imported.update(modules)  # all of them first: a module may use a registry, or import another one, while imported
    for i, module in enumerate(modules):
        _importing.append(module)
        new, known = module not in sys.modules, len(_from_plugins)
        try:
            import_module(module)
        except Exception as e:
            _imported.difference_update(modules[i:])  # to try again, and fail again, next time
            raise VitrailError(
                f"{PLUGINS}: cannot import {module} ({e}); install it, or add its folder to PYTHONPATH"
            ) from e
        finally:
            _importing.pop()
        if new and len(_from_plugins) == known:
            _LOG.warning(
                "%s: %s registered nothing; name the module that does, or install the package", PLUGINS, module
            )


def added_entries() -> list[tuple[str, str, Any, str]]:
    """Return what was added in this process and can be imported in another: (group, name, entry, summary)."""
    return [
        (group, name, entry, summary)
        for group, registry in REGISTRIES.items()
        for name, (entry, summary) in registry._added.items()
        if is_importable(entry)
    ]


def restore_entries(entries: Iterable[tuple[str, str, Any, str]]) -> None:
    """Add entries of another process, now or when their registry is imported."""
    for group, name, entry, summary in entries:
        if group in REGISTRIES:
            REGISTRIES[group].add(name, entry, summary)
        else:
            _pending.setdefault(group, []).append((name, entry, summary))


def is_importable(entry: object) -> bool:
    """Return whether another process can import a class or function: it is not in `__main__` or inside a function."""
    module, name = getattr(entry, "__module__", "__main__"), getattr(entry, "__qualname__", "")
    return module not in ("__main__", "__mp_main__") and getattr(sys.modules.get(module), name, None) is entry


def _same(a: object, b: object) -> bool:
    """Whether two objects are the same class or function, perhaps defined again."""
    return a is b or all(getattr(a, n, a) == getattr(b, n, b) for n in ("__module__", "__qualname__"))
