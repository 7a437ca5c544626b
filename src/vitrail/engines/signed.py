"""Messages that prove who sent them, over any engine: what travels is a message, then its signature.

The server signs each request for one client; a client signs each reply, together with the request it answers. Run,
round, exchange and sender stand in the message itself, so the signature covers them. An answer that is not signed by
the key its client is known by is left out; a request that is not signed by the server that a node's owner named is
answered with a refusal. What methods see has the bits that it has without signatures.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from vitrail import state as store
from vitrail.engines.client import Client
from vitrail.engines.replies import Failure
from vitrail.engines.rounds import Ask, Outcome
from vitrail.errors import Malformed, VitrailError
from vitrail.privacy.signing import SIGNATURE, Key, public_key, signed_by, split
from vitrail.wire.message import digest, round_of

_REQUEST, _REPLY = b"request", b"reply"


@dataclass(frozen=True)
class Node:
    """A client whose messages are signed: its own key, and its server's, if its owner named that."""

    client: Client
    key: Key
    server: bytes | None = None  # None: requests are not checked

    def answer(self, carried: bytes) -> bytes:
        """As the client's own, over signed bytes."""
        name, request = self.client.name, b""
        try:
            request, signature = split(carried)
            if self.server is not None and not signed_by(self.server, signature, _REQUEST, name.encode(), request):
                raise Malformed("the request is not signed by the server that this node's owner named (server-key)")
        except Malformed as e:
            reply = self.client.refuse(str(e))
        else:
            reply = self.client.answer(request)
        return reply + self.key.sign(_REPLY, name.encode(), digest(request), reply)


class Names:
    """Which key each client of a run is known by.

    Where a folder of expected keys is given (a file `CLIENT.pub` each), only those count. Otherwise a client is known
    by the first key it shows, kept in the run's folder.
    """

    def __init__(self, path: Path, expected: Path | None = None) -> None:
        self.path, self.expected = path, expected
        self.keys: dict[str, bytes] = {}
        if expected is None and path.exists():
            self.keys = _read(path)

    def meet(self, client: str, key: bytes) -> None:
        """Take note of the key that a client shows, or refuse it."""
        known = self.key_of(client)
        if self.expected is not None and known is None:
            raise VitrailError(
                f"no key is expected for {client!r}: put its {file_name(client)} into the folder of keys"
            )
        if known is not None and known != key:
            since = "this run began with" if self.expected is None else "is expected"
            raise VitrailError(f"{client!r} shows the key {key.hex()[:16]}..., and {known.hex()[:16]}... {since}")
        if known is None:
            self.keys[client] = key
            text = json.dumps({name: k.hex() for name, k in sorted(self.keys.items())}, indent=1, ensure_ascii=False)
            store.write_atomically(self.path, text.encode() + b"\n")

    def key_of(self, client: str) -> bytes | None:
        """The key that a client must sign with; None: nobody knows it."""
        if client not in self.keys and self.expected is not None and (self.expected / file_name(client)).exists():
            self.keys[client] = public_key(str(self.expected / file_name(client)))
        return self.keys.get(client)


@dataclass
class Server:
    """The server's side: its key, and the keys of its clients."""

    key: Key
    names: Names
    counted: dict[tuple[int, str], list[int]] = field(default_factory=dict)  # signatures by round, client: down, up

    def ask(self, carry: Ask) -> Ask:
        """An engine's `ask`, over signed bytes."""

        def ask(requests: Iterable[tuple[str, bytes] | None]) -> Iterator[tuple[str, bytes | Failure]]:
            asked: dict[str, bytes] = {}
            for client, answer in carry(self._signed(requests, asked)):
                yield client, answer if isinstance(answer, Failure) else self._opened(client, answer, asked[client])

        return ask

    def count(self, outcome: Outcome) -> None:
        """Add the bytes of a round's signatures to what it cost."""
        for (t, client), (down, up) in list(self.counted.items()):
            if t == outcome.round:
                outcome.down[client] = outcome.down.get(client, 0) + down * SIGNATURE
                outcome.up[client] = outcome.up.get(client, 0) + up * SIGNATURE
                del self.counted[t, client]

    def _signed(
        self, requests: Iterable[tuple[str, bytes] | None], asked: dict[str, bytes]
    ) -> Iterator[tuple[str, bytes] | None]:
        for one in requests:
            if one is None:
                yield None
                continue
            client, request = one
            asked[client] = request
            self._tally(request, client)[0] += 1
            yield client, request + self.key.sign(_REQUEST, client.encode(), request)

    def _opened(self, client: str, carried: bytes, request: bytes) -> bytes | Failure:
        known = self.names.key_of(client)
        try:
            reply, signature = split(carried)
        except Malformed as e:
            return Failure(f"reply refused: {e}")
        self._tally(request, client)[1] += 1
        if known is None:
            return Failure("reply refused: no key is known for it")
        if not signed_by(known, signature, _REPLY, client.encode(), digest(request), reply):
            return Failure(f"reply refused: not signed, for this request, by its key {known.hex()[:16]}...")
        return reply

    def _tally(self, request: bytes, client: str) -> list[int]:
        return self.counted.setdefault((round_of(request), client), [0, 0])


def file_name(client: str) -> str:
    """The file of a client's public key.

    >>> file_name("north/1")
    'north%2F1.pub'
    """
    return f"{quote(client, safe=' ')}.pub"


def _read(path: Path) -> dict[str, bytes]:
    try:
        found = {str(name): bytes.fromhex(key) for name, key in json.loads(path.read_text("utf-8")).items()}
    except (ValueError, TypeError, AttributeError, OSError) as e:
        raise VitrailError(f"{path.name} is damaged: {e}; take it from a copy of the run, or begin anew") from None
    return found
