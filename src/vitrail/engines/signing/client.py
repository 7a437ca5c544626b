"""A client's side of signed messages; signed.py is the server's, and says what signatures cover."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.utils.errors import Malformed
from vitrail.utils.keys import Key, signed_by, split
from vitrail.wire.message import digest

NONCE = 32  # bytes, drawn by the server for each request for a description
TRAIN = "train"  # what a message is for, unless somebody says otherwise


@dataclass(frozen=True)
class SignedSession:
    """A client's side: its own key, and its server's, if its owner named that."""

    name: str
    key: Key
    server: bytes | None = None  # None: nobody checks who asks

    def opened(self, carried: bytes, about: str = "", what: str = TRAIN, to: str | None = None) -> bytes:
        """A request, if it is the server's, to this node and about this; `to` is empty where it is to anybody."""
        request, signature = split(carried)
        signed = asks(what, self.name if to is None else to, about, request)
        if self.server is not None and not signed_by(self.server, signature, *signed):
            raise Malformed("the request is not signed by the server that this node's owner named (server-key)")
        return request

    def closed(self, request: bytes, reply: bytes, what: str = TRAIN) -> bytes:
        """A reply as it travels."""
        return reply + self.key.sign(*answers(what, self.name, request, reply))


def asks(what: str, client: str, about: str, request: bytes) -> tuple[bytes, ...]:
    """What the server signs of a request."""
    return b"request", what.encode(), client.encode(), about.encode(), request


def answers(what: str, client: str, request: bytes, reply: bytes) -> tuple[bytes, ...]:
    """What a client signs of a reply."""
    return b"reply", what.encode(), client.encode(), digest(request), reply


def asked_under(nonce: bytes, terms: str) -> bytes:
    """What a description answers, as its signature covers it: the nonce of one request, and the terms it came with."""
    return nonce + terms.encode()
