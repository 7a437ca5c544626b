"""A ledger file: entries that are chained by hashes and signed (a run's ledger.json, a client's budget).

A JSON list with one entry per line. `hash` covers all fields except `hash`, `key` and `signature`; `previous` is the
hash of the entry before. `signature` is an Ed25519 signature of `hash` by `key`. The hash does not cover the key, so a
run repeated from its seed has the same hashes and model file under another key. Version 0.1.0 signed nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from vitrail.utils.atomic import write_atomically
from vitrail.utils.errors import Malformed
from vitrail.utils.keys import Key, signed_by

Entry = dict[str, Any]
_UNHASHED = ("hash", "key", "signature")
_PURPOSE = b"ledger entry"


def _hash(entry: Entry) -> str:
    plain = {k: v for k, v in entry.items() if k not in _UNHASHED}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class Ledger:
    """A chained list of entries in a file.

    Args:
        path: The file; it is read and checked if it exists.
        private: Whether only its owner may read the file.
        key: Returns the key that signs new entries; None: they are not signed.

    Raises:
        Malformed: The file is not a valid ledger.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger(Path(folder) / "ledger.json")
        ...     ledger.write(kind="round", round=0)
        ...     [entry["kind"] for entry in read(ledger.path)]
        ['round']
    """

    def __init__(self, path: Path, private: bool = False, key: Callable[[], Key] | None = None) -> None:
        self.path, self.private, self.key = path, private, key
        self.entries = read(path) if path.exists() else []

    @property
    def head(self) -> str:
        """The hash of the last entry, which commits to all entries before it."""
        return str(self.entries[-1]["hash"]) if self.entries else ""

    def write(self, **facts: Any) -> None:
        """Append an entry; it is on disk when this returns."""
        entry: Entry = {"n": len(self.entries), **facts, "previous": self.head}
        entry["hash"] = _hash(entry)
        if self.key is not None:
            key = self.key()
            entry |= {"key": key.public.hex(), "signature": key.sign(_PURPOSE, entry["hash"].encode()).hex()}
        self.entries.append(entry)
        lines = ",\n".join(json.dumps(e, ensure_ascii=False) for e in self.entries)
        write_atomically(self.path, f"[\n{lines}\n]\n".encode(), 0o600 if self.private else 0o644)

    def once(self, **facts: Any) -> None:
        """Append an entry unless one with these facts exists, as after a restart."""
        if not any(entry.items() >= facts.items() for entry in self.entries):
            self.write(**facts)


def read(path: Path) -> list[Entry]:
    """Read a ledger and check its chain and signatures.

    Args:
        path: The ledger's file.

    Raises:
        Malformed: The file is no ledger, an entry does not follow from those before it, or a signature is not valid.
    """
    try:
        entries = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise Malformed(f"{path} is not a ledger: {e}") from e
    if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        raise Malformed(f"{path} is not a ledger: it is not a list of entries")
    previous, signed = "", False
    for n, entry in enumerate(entries):
        signed = signed or "signature" in entry  # a signed entry commits to all before it by its hash
        if entry.get("n") != n or entry.get("previous") != previous or entry.get("hash") != _hash(entry):
            raise Malformed(f"{path}: line {n + 2} does not follow from the lines above: the ledger was changed")
        if signed and not _is_signed(entry):
            raise Malformed(f"{path}: line {n + 2} has no valid signature: the ledger was changed")
        previous = entry["hash"]
    return entries


def signers(entries: list[Entry]) -> list[str]:
    """Return the public keys that signed the entries, each once, in order; "" for unsigned ones (version 0.1.0)."""
    return list(dict.fromkeys(str(entry["key"]) if "signature" in entry else "" for entry in entries))


def requests_by_client(entries: Iterable[Entry], everyone: Sequence[str]) -> Counter[str]:
    """Return the number of requests to each client that a ledger records.

    Args:
        entries: The ledger's entries.
        everyone: All clients of the run, for rounds that record "all".
    """
    requests: Counter[str] = Counter()
    for entry in entries:
        if entry["kind"] == "round":
            requests.update(everyone if entry["asked"] == "all" else entry["asked"])
    return requests


def max_requests(entries: Iterable[Entry]) -> int:
    """Return the largest number of requests to one client, from the ledger alone."""
    rounds = [entry["asked"] for entry in entries if entry["kind"] == "round"]
    named = Counter(client for requested in rounds if requested != "all" for client in requested)
    return rounds.count("all") + max(named.values(), default=0)


def _is_signed(entry: Entry) -> bool:
    try:
        key, signature = bytes.fromhex(entry["key"]), bytes.fromhex(entry["signature"])
    except (KeyError, TypeError, ValueError):
        return False
    return signed_by(key, signature, _PURPOSE, entry["hash"].encode())
