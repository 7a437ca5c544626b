"""Messages that prove who sent them, over any engine: what travels is a message, then its signature.

The server signs each request for one client, together with what it is about (the terms of the run); a client signs
each reply, together with the request it answers. Run, round, exchange and sender stand in the message itself, so the
signature covers them. An answer that is not signed by the key its client is known by is left out; a request that is
not signed by the server that a node's owner named is refused. What methods see has the bits it has without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from vitrail.engines.replies import Failure
from vitrail.engines.rounds import Ask, RoundResult
from vitrail.engines.signing.client import TRAIN, answers, asks
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.keys import SIGNATURE, Key, public_key, signed_by, split
from vitrail.wire.message import round_of


@dataclass
class ClientKeys:
    """Which key each client of a run is known by.

    Where a folder of expected keys is given (a file `CLIENT.pub` each), only those count. Otherwise a client is known
    by the first key it shows.
    """

    keys: dict[str, bytes] = field(default_factory=dict)
    expected: Path | None = None

    def meet(self, client: str, key: bytes) -> None:
        """Take note of the key that a client shows, or refuse it."""
        known = self.key_of(client)
        if known is None and self.expected is not None:
            raise VitrailError(f"no key is expected for {client!r}: put {file_name(client)} into the folder of keys")
        if known is not None and known != key:
            since = "is expected" if self.expected is not None else "was its key before"
            raise VitrailError(f"{client!r} shows the key {key.hex()[:16]}..., and {known.hex()[:16]}... {since}")
        self.keys[client] = key

    def key_of(self, client: str) -> bytes | None:
        """The key that a client must sign with; None: nobody knows it."""
        if self.expected is not None:
            path = self.expected / file_name(client)
            return public_key(str(path)) if path.exists() else None
        return self.keys.get(client)


@dataclass
class SigningServer:
    """The server's side: its key, the keys of its clients, and what its requests are about."""

    key: Key
    names: ClientKeys
    about: Callable[[], str] = lambda: ""
    counted: dict[tuple[int, str], list[int]] = field(default_factory=dict)  # signatures by round, client: down, up

    def ask(self, carry: Ask, what: str = TRAIN) -> Ask:
        """An engine's `ask`, over signed bytes."""

        def ask(requests: Iterable[tuple[str, bytes] | None]) -> Iterator[tuple[str, bytes | Failure]]:
            asked: dict[str, bytes] = {}
            for client, answer in carry(self._signed(requests, asked, what)):
                yield client, self._opened(client, answer, asked[client], what)

        return ask

    def sign(self, client: str, request: bytes, what: str = TRAIN) -> bytes:
        """A request as it travels."""
        return request + self.key.sign(*asks(what, client, self.about(), request))

    def proven(self, client: str, key: bytes, asked: bytes, reply: bytes, signature: bytes, what: str) -> None:
        """Meet a client: it signed its reply to this very request with the key that it shows, and that is its own.

        Args:
            client: the name it gives.
            key: the public key it shows.
            asked: what it answers (`asked_under`).
            reply: its description.
            signature: over all of these.
            what: the kind of message.

        Raises:
            VitrailError: the signature is of another key, or for another request.
        """
        if not signed_by(key, signature, *answers(what, client, asked, reply)):
            raise VitrailError(f"{client!r}: its description is not signed, for this request, by the key that it shows")
        self.names.meet(client, key)

    def count(self, outcome: RoundResult) -> None:
        """Add the bytes of a round's signatures to what it cost."""
        for (t, client), (down, up) in list(self.counted.items()):
            if t == outcome.round:
                outcome.down[client] = outcome.down.get(client, 0) + down * SIGNATURE
                outcome.up[client] = outcome.up.get(client, 0) + up * SIGNATURE
                del self.counted[t, client]

    def _signed(
        self, requests: Iterable[tuple[str, bytes] | None], asked: dict[str, bytes], what: str
    ) -> Iterator[tuple[str, bytes] | None]:
        for one in requests:
            if one is None:
                yield None
                continue
            client, request = one
            asked[client] = request
            self._tally(request, client, what)[0] += 1
            yield client, self.sign(client, request, what)

    def _opened(self, client: str, carried: bytes | Failure, request: bytes, what: str) -> bytes | Failure:
        if isinstance(carried, Failure):
            return carried
        known = self.names.key_of(client)
        try:
            reply, signature = split(carried)
        except Malformed as e:
            return Failure(f"reply refused: {e}")
        self._tally(request, client, what)[1] += 1
        if known is None:
            return Failure("reply refused: no key is known for it")
        if not signed_by(known, signature, *answers(what, client, request, reply)):
            return Failure(f"reply refused: not signed, for this request, by its key {known.hex()[:16]}...")
        return reply

    def _tally(self, request: bytes, client: str, what: str) -> list[int]:
        return self.counted.setdefault((round_of(request), client), [0, 0]) if what == TRAIN else [0, 0]


def file_name(client: str) -> str:
    """The file of a client's public key.

    >>> file_name("north/1")
    'north%2F1.pub'
    """
    return f"{quote(client, safe=' ')}.pub"
