"""A client's side of signed messages."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.utils.errors import Malformed
from vitrail.utils.keys import Key, signed_by, split
from vitrail.wire.message import digest

NONCE = 32  # bytes, drawn by the server for each request for a description
TRAIN, DESCRIBE, KEEP = "train", "query.describe", "query.keep"  # purposes of a message, and types of Flower's


@dataclass(frozen=True)
class SignedSession:
    """Verifies requests and signs replies of one client.

    Args:
        name: The client's name.
        key: The client's key.
        server: Public key of the server; None: requests are not verified.
    """

    name: str
    key: Key
    server: bytes | None = None

    def verify(self, signed: bytes, spec: str = "", purpose: str = TRAIN, to: str | None = None) -> bytes:
        """Return the request in a signed message.

        Args:
            signed: The request, followed by its signature.
            spec: Specification of the run that the request was sent with.
            purpose: What the message is for.
            to: Recipient that the signature must name; None: this client.

        Raises:
            Malformed: The signature is not the server's, or is for another recipient, purpose or run.
        """
        request, signature = split(signed)
        pieces = request_pieces(purpose, self.name if to is None else to, spec, request)
        if self.server is not None and not signed_by(self.server, signature, *pieces):
            raise Malformed("the request is not signed by the server that this node's owner named (server-key)")
        return request

    def sign(self, request: bytes, reply: bytes, purpose: str = TRAIN) -> bytes:
        """Return a reply, followed by its signature."""
        return reply + self.key.sign(*reply_pieces(purpose, self.name, request, reply))


def request_pieces(purpose: str, client: str, spec: str, request: bytes) -> tuple[bytes, ...]:
    """Return what the server signs of a request."""
    return b"request", purpose.encode(), client.encode(), spec.encode(), request


def reply_pieces(purpose: str, client: str, request: bytes, reply: bytes) -> tuple[bytes, ...]:
    """Return what a client signs of a reply."""
    return b"reply", purpose.encode(), client.encode(), digest(request), reply


def description_request(nonce: bytes, spec: str) -> bytes:
    """Return the request that the signature of a description covers: the nonce and the specification of the run."""
    return nonce + spec.encode()
