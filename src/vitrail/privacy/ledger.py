"""The ledger: what a run releases, written before it leaves, each line chained to the one before by a hash.

ledger.json is a JSON list with one entry a line. An entry's `hash` covers all its other fields and the hash of the
entry before it, so a line that was changed, removed or put in shows; the last hash stands in the model file.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from vitrail.atomic import write_atomically
from vitrail.errors import Malformed

Entry = dict[str, Any]


def _hash(entry: Entry) -> str:
    plain = {k: v for k, v in entry.items() if k != "hash"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class Ledger:
    """A chained list of entries in a file."""

    def __init__(self, path: Path, private: bool = False) -> None:
        self.path, self.private = path, private
        self.entries = read(path) if path.exists() else []

    @property
    def head(self) -> str:
        """The hash of the last entry: it names all that stands before."""
        return str(self.entries[-1]["hash"]) if self.entries else ""

    def write(self, **facts: Any) -> None:
        """Add an entry; it is on the disk when this returns."""
        entry: Entry = {"n": len(self.entries), **facts, "previous": self.head}
        self.entries.append(entry | {"hash": _hash(entry)})
        lines = ",\n".join(json.dumps(e, ensure_ascii=False) for e in self.entries)
        write_atomically(self.path, f"[\n{lines}\n]\n".encode(), 0o600 if self.private else 0o644)

    def once(self, **facts: Any) -> None:
        """Add an entry unless it stands there already, as after a restart."""
        if not any(entry.items() >= facts.items() for entry in self.entries):
            self.write(**facts)


def read(path: Path) -> list[Entry]:
    """All entries of a ledger whose chain holds."""
    try:
        entries = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as e:
        raise Malformed(f"{path} is not a ledger: {e}") from e
    if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        raise Malformed(f"{path} is not a ledger: it is no list of entries")
    previous = ""
    for n, entry in enumerate(entries):
        if entry.get("n") != n or entry.get("previous") != previous or entry.get("hash") != _hash(entry):
            raise Malformed(f"{path}: line {n + 2} does not follow from what stands above: the ledger was changed")
        previous = entry["hash"]
    return entries
