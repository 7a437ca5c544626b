"""The server's side of signed messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from vitrail.engines.federation import Ask, RoundResult
from vitrail.engines.replies import Failure
from vitrail.engines.signing.client import TRAIN, reply_pieces, request_pieces
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.keys import SIGNATURE, Key, public_key, signed_by, split
from vitrail.wire.message import round_of


@dataclass
class ClientKeys:
    """Public keys of the clients of a run.

    Args:
        keys: Known keys by client. A client is known by the first key it presents.
        expected: Folder with a file `CLIENT.pub` for each client; if given, only these keys count.
    """

    keys: dict[str, bytes] = field(default_factory=dict)
    expected: Path | None = None

    def meet(self, client: str, key: bytes) -> None:
        """Record the key that a client presents.

        Raises:
            VitrailError: The client is known by another key, or its key is not in the folder of expected keys.
        """
        known = self.key_of(client)
        if known is None and self.expected is not None:
            raise VitrailError(f"no key is expected for {client!r}: put {file_name(client)} into the folder of keys")
        if known is not None and known != key:
            since = "was its key before"
            if self.expected is not None:
                since = f"is expected: copy the node.key that belongs to {file_name(client)} into the node's folder"
            raise VitrailError(f"{client!r} presents the key {key.hex()[:16]}..., but {known.hex()[:16]}... {since}")
        self.keys[client] = key

    def check_files(self) -> None:
        """Read all files of the folder of expected keys.

        Raises:
            VitrailError: The folder has no keys, or a file is not a public key.
        """
        files = sorted(self.expected.glob("*.pub")) if self.expected is not None else []
        if self.expected is not None and not files:
            raise VitrailError(f"{self.expected} has no file NAME.pub: give the folder of the nodes' public keys")
        for path in files:
            try:
                public_key(str(path))
            except VitrailError as e:
                raise VitrailError(f"{path}: {e}") from None

    def key_of(self, client: str) -> bytes | None:
        """Return the key that a client must sign with; None: it is not known."""
        if self.expected is not None:
            path = self.expected / file_name(client)
            return public_key(str(path)) if path.exists() else None
        return self.keys.get(client)


@dataclass
class SigningServer:
    """Signs requests and verifies replies.

    Args:
        key: The server's key.
        client_keys: Public keys of the clients.
        spec: Returns the specification of the run, which the signatures of requests cover.
        counted: Numbers of signatures sent and received, by round and client.
    """

    key: Key
    client_keys: ClientKeys
    spec: Callable[[], str] = lambda: ""
    counted: dict[tuple[int, str], list[int]] = field(default_factory=dict)

    def ask(self, carry: Ask, purpose: str = TRAIN) -> Ask:
        """Wrap an engine: sign its requests, and verify its replies."""

        def ask(requests: Iterable[tuple[str, bytes] | None]) -> Iterator[tuple[str, bytes | Failure]]:
            sent: dict[str, bytes] = {}
            for client, answer in carry(self._sign_all(requests, sent, purpose)):
                yield client, self._verify(client, answer, sent[client], purpose)

        return ask

    def sign(self, client: str, request: bytes, purpose: str = TRAIN) -> bytes:
        """Return a request, followed by its signature."""
        return request + self.key.sign(*request_pieces(purpose, client, self.spec(), request))

    def verify_description(
        self, client: str, key: bytes, request: bytes, reply: bytes, signature: bytes, purpose: str
    ) -> None:
        """Verify that a client signed its description for this request with the key it presents, and record the key.

        Args:
            client: The name it gives.
            key: The public key it presents.
            request: What it answers (`description_request`).
            reply: Its description.
            signature: Signature over these.
            purpose: What the message is for.

        Raises:
            VitrailError: The signature is of another key or for another request, or the key is not the client's.
        """
        if not signed_by(key, signature, *reply_pieces(purpose, client, request, reply)):
            raise VitrailError(f"{client!r}: its description is not signed for this request by the key it presents")
        self.client_keys.meet(client, key)

    def count(self, outcome: RoundResult) -> None:
        """Add the bytes of a round's signatures to its result."""
        for (t, client), (down, up) in list(self.counted.items()):
            if t == outcome.round:
                outcome.down[client] += down * SIGNATURE
                outcome.up[client] += up * SIGNATURE
                del self.counted[t, client]

    def _sign_all(
        self, requests: Iterable[tuple[str, bytes] | None], sent: dict[str, bytes], purpose: str
    ) -> Iterator[tuple[str, bytes] | None]:
        for pair in requests:
            if pair is None:
                yield None
                continue
            client, request = pair
            sent[client] = request
            self._counts(request, client, purpose)[0] += 1
            yield client, self.sign(client, request, purpose)

    def _verify(self, client: str, signed: bytes | Failure, request: bytes, purpose: str) -> bytes | Failure:
        if isinstance(signed, Failure):
            return signed
        known = self.client_keys.key_of(client)
        try:
            reply, signature = split(signed)
        except Malformed as e:
            return Failure(f"reply refused: {e}")
        self._counts(request, client, purpose)[1] += 1
        if known is None:
            return Failure("reply refused: its key is not known")
        if not signed_by(known, signature, *reply_pieces(purpose, client, request, reply)):
            return Failure(f"reply refused: not signed for this request by its key {known.hex()[:16]}...")
        return reply

    def _counts(self, request: bytes, client: str, purpose: str) -> list[int]:
        return self.counted.setdefault((round_of(request), client), [0, 0]) if purpose == TRAIN else [0, 0]


def file_name(client: str) -> str:
    """Return the name of the file of a client's public key.

    Examples:
        >>> file_name("north/1")
        'north%2F1.pub'
    """
    return f"{quote(client, safe=' ')}.pub"
