"""The package runs on Windows and macOS by construction: no module needs what only Linux has."""

from __future__ import annotations

import ast
from pathlib import Path

import vitrail

ROOT = Path(vitrail.__file__).parent
UNIX_ONLY = {"fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "syslog", "posix"}
UNIX_CALLS = {"fork", "forkpty", "getuid", "geteuid", "sched_getaffinity", "killpg", "setsid", "memfd_create"}


def unix_names(tree: ast.AST) -> set[str]:
    """Return the modules and functions of Unix that a module imports or calls."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names} & UNIX_ONLY
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "").partition(".")[0]} & UNIX_ONLY
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            found |= {node.attr} & UNIX_CALLS
    return found


def test_no_module_uses_what_only_unix_has() -> None:
    uses = {str(p.relative_to(ROOT)): unix_names(ast.parse(p.read_text(encoding="utf-8"))) for p in ROOT.rglob("*.py")}
    assert len(uses) > 50
    assert {path: names for path, names in uses.items() if names} == {}


def test_the_search_finds_imports_and_calls() -> None:
    code = "import os\ndef f():\n    import fcntl\n    from resource import getrusage\n    os.fork()"
    assert unix_names(ast.parse(code)) == {"fcntl", "resource", "fork"}
