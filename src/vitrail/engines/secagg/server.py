"""The server's side of secure aggregation, on any engine: five exchanges per round, of which the result is a sum.

Masked replies are added as they arrive; masks are removed from the sum only. A client that drops out before its masked
reply arrives is excluded; one that drops out later is in the sum. client.py lists the exchanges, shares.py has the
arithmetic, docs/concepts/security.md the guarantees against a server that deviates from the protocol.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from vitrail.engines.federation import Ask, OnProgress
from vitrail.engines.replies import CheckedReply, Failure, read_reply
from vitrail.engines.requests import RequestBuilder
from vitrail.engines.secagg import messages
from vitrail.engines.secagg import shares as secagg
from vitrail.engines.secagg.messages import IntegerFormat, Words, bits_part, bytes_part, integer_formats, write_names
from vitrail.engines.secagg.shares import SHARE, AdvertisedKeys, Group
from vitrail.methods.base import Method, PartSpec, Sums
from vitrail.utils import crypto
from vitrail.utils.errors import VitrailError, reason_of
from vitrail.utils.keys import SIGNATURE, signed_by
from vitrail.wire.message import Header, Kind, Message, Part, encode


def check_secagg(method: Method, per_round: int | None = None) -> None:
    """Refuse a method or a threshold that secure aggregation does not support.

    Args:
        method: The method, whose task names the threshold; 0: secure aggregation is off.
        per_round: Number of clients per round; None: all.

    Raises:
        VitrailError: The method sends parts that are not sums, or the threshold is not a majority.
    """
    task, n = method.task, per_round or method.task.clients
    if not task.secagg_threshold:
        return
    single = sorted(name for name, d in method.reply_spec().items() if d.how != "sum")
    if single:
        raise VitrailError(
            f"secure aggregation shows the server only sums, and this method sends {', '.join(single)} of each client: "
            "use a method whose parts are all sums, or secagg_threshold=0"
        )
    integer_formats(method.reply_spec(), task.clients, n)
    if not (2 <= task.secagg_threshold <= n < 2 * task.secagg_threshold):
        raise VitrailError(
            f"secagg_threshold={task.secagg_threshold} with {n} clients per round: it must be more than half of them, "
            "because two disjoint groups could otherwise be shown different lists of clients, and at most all of them; "
            f"use {max(2, n // 2 + 1)} to {n}"
        )


def secure_sums(
    method: Method, builder: RequestBuilder, participants: Sequence[str], send: Ask, on_progress: OnProgress
) -> Sums | Failure:
    """Run all exchanges of one round.

    Args:
        method: The method.
        builder: Encodes the method's requests of this round; its result is updated.
        participants: The clients of this round.
        send: The engine that carries messages.
        on_progress: Called after each reply.

    Returns:
        The sums over the clients whose masked replies arrived, or the reason why there are none.
    """
    declared, task = method.reply_spec(), method.task
    integer_formats(declared, task.clients, len(participants))  # raises for parts that cannot be masked
    exchanges = _Exchanges(builder, send, on_progress)

    def too_few(left: Collection[str], did: str) -> Failure | None:
        if len(left) >= task.secagg_threshold:
            return None
        return Failure(
            f"{len(left)} of {len(participants)} clients {did}, {task.secagg_threshold} must remain to open a sum"
        )

    names = exchanges.advertise(participants)
    if failure := too_few(names, "sent their keys"):
        return failure
    group = Group(builder.run, builder.fed.round, tuple(names), task.secagg_threshold)
    exchanges.share(group)
    if failure := too_few(exchanges.letters, "shared their secrets"):
        return failure
    formats = integer_formats(declared, task.clients, len(names))
    total = exchanges.mask(group, formats)
    alive = builder.result.replied
    if failure := too_few(alive, "sent their masked replies"):
        return failure
    signatures = exchanges.confirm(group, alive)
    if failure := too_few(signatures, "confirmed whose replies arrived"):
        return failure
    shares = exchanges.open(group, signatures)
    try:
        for key, sign in secagg.remaining_masks(group, set(exchanges.letters), set(alive), exchanges.keys, shares):
            secagg.add_mask(total, key, sign)
        return Sums({name: part.total(total[name], len(alive)) for name, part in formats.items()}, len(alive))
    except Exception as e:
        return Failure(reason_of(e))


class _Exchanges:
    """The exchanges with all clients; a client that fails one is excluded from the rest."""

    def __init__(self, builder: RequestBuilder, send: Ask, on_progress: OnProgress) -> None:
        self.builder, self.send, self.on_progress, self.result = builder, send, on_progress, builder.result
        self.excluded = self.result.excluded
        self.keys: dict[str, AdvertisedKeys] = {}
        self.letters: dict[str, bytes] = {}  # by sender: its sealed letters to all others, in order
        self.need_full: list[str] = []  # clients that do not have the state that the server assumed

    def advertise(self, participants: Sequence[str]) -> list[str]:
        """Exchange 0: collect the clients' keys; return the clients that sent valid ones, in order."""
        parts: dict[str, Sequence[Part]] = dict.fromkeys(participants, ())
        for client, raw in self._exchange(messages.ADVERTISE, parts, messages.KEYS, secagg.ADVERTISED):
            try:
                keys = AdvertisedKeys.read(raw)
                for key in (keys.letters, keys.masks):  # a key with which every agreement is public would fail others
                    crypto.agree(bytes(secagg.SECRET), key, b"a trial")
                self.keys[client] = keys.check(self.builder.run, self.builder.fed.round, client)
            except Exception as e:
                self.excluded[client] = f"reply refused: {reason_of(e)}"
        signers: set[bytes] = set()
        for client in [c for c in participants if c in self.keys]:
            if self.keys[client].signer in signers:  # the other clients would refuse both
                self.excluded[client] = "reply refused: it sent the key of another client"
                del self.keys[client]
            else:
                signers.add(self.keys[client].signer)
        return [c for c in participants if c in self.keys]

    def share(self, group: Group) -> None:
        """Exchange 1: collect the sealed letters between clients."""
        names = bytes_part(messages.WHO, write_names(list(group.names)))
        parts = dict.fromkeys(group.names, (names, bytes_part(messages.KEYS, self._all_keys(group))))
        size = secagg.LETTER * (len(group.names) - 1)
        self.letters |= self._exchange(messages.SHARES, parts, messages.LETTERS, size)

    def mask(self, group: Group, formats: Mapping[str, IntegerFormat]) -> dict[str, Words]:
        """Exchange 2, the method's own round: return the sum of all masked replies that arrive."""
        total: dict[str, Words] = {name: np.zeros(part.size, part.dtype) for name, part in formats.items()}
        expected = {name: PartSpec("each", "bytes", part.wire_bytes) for name, part in formats.items()}
        members = [c for c in group.names if c in self.letters]
        order = {c: i for i, c in enumerate(group.names)}
        senders = bits_part(messages.FROM, [c in self.letters for c in group.names])

        def letters_to(client: str) -> tuple[Part, Part]:
            raw, k = bytearray(), order[client]
            for c in members:
                if c != client:
                    at = secagg.LETTER * (k - (k > order[c]))  # a sender has no letter to itself
                    raw += self.letters[c][at : at + secagg.LETTER]
            return senders, bytes_part(messages.LETTERS, bytes(raw))

        for full, clients in ((False, members), (True, self.need_full)):
            requests = self.builder.requests(clients, full, messages.MASK, letters_to)
            for client, reply in self._replies(messages.MASK, requests, expected, full):
                try:
                    words = {p.part.name: formats[p.part.name].unpack(p.array) for p in reply}
                except Exception as e:
                    self.excluded[client] = f"reply refused: {reason_of(e)}"
                    continue
                for name, a in words.items():
                    total[name] += a
                self.result.replied.append(client)
                self.result.floats_up += sum(4 * part.size for part in formats.values())
        return total

    def confirm(self, group: Group, alive: Collection[str]) -> dict[str, bytes]:
        """Exchange 3: return the clients' signatures over the list of clients whose masked replies arrived."""
        bits = [c in alive for c in group.names]
        view = secagg.view(group, self._all_keys(group), bits)
        self.excluded = {}  # clients that drop out from now on are in the sum
        parts = {c: (bits_part(messages.ALIVE, bits),) for c in group.names if c in alive}
        replies = self._exchange(messages.CONFIRM, parts, messages.SIGNATURES, SIGNATURE)
        return {c: signature for c, signature in replies if signed_by(self.keys[c].signer, signature, *view)}

    def open(self, group: Group, signatures: Mapping[str, bytes]) -> dict[int, dict[int, bytes]]:
        """Exchange 4: return, by client, the shares of one of its two secrets by the clients that sent them."""
        names = group.names
        members = [i for i, c in enumerate(names) if c in self.letters]
        signers = [c for c in names if c in signatures][: group.threshold]  # more signatures prove no more
        signed = bytes_part(messages.SIGNATURES, b"".join(signatures[c] for c in signers))
        parts = bits_part(messages.FROM, [c in signers for c in names]), signed
        recipients = {c: parts for c in names if c in signatures}
        replies = dict(self._exchange(messages.OPEN, recipients, messages.OPENED, SHARE * len(members)))
        return {
            i: {j: replies[c][SHARE * at : SHARE * (at + 1)] for j, c in enumerate(names) if c in replies}
            for at, i in enumerate(members)
        }

    def _all_keys(self, group: Group) -> bytes:
        return b"".join(self.keys[c].pack() for c in group.names)

    def _exchange(
        self, exchange: int, parts: Mapping[str, Sequence[Part]], name: str, size: int
    ) -> Iterator[tuple[str, bytes]]:
        """Send each client its parts; yield the replies, each of one part with this name and number of bytes."""

        def requests() -> Iterator[tuple[str, bytes]]:
            for client, own in parts.items():
                header = Header(Kind.REQUEST, self.builder.run, self.builder.fed.round, "server", exchange)
                request = encode(Message(header, tuple(own)))
                self.result.down[client] += len(request)
                yield client, request

        for client, reply in self._replies(exchange, requests(), {name: PartSpec("each", "bytes", size)}):
            yield client, bytes(reply[0].array)

    def _replies(
        self, exchange: int, requests: Iterable[tuple[str, bytes]], expected: Mapping[str, PartSpec], full: bool = True
    ) -> Iterator[tuple[str, CheckedReply]]:
        """Yield valid replies; other clients are excluded, or added to `need_full` if they need the full state."""
        b = self.builder
        for client, answer in self.send(requests):
            self.result.count_up(client, answer)
            reply = read_reply(answer, b.run, b.fed.round, client, expected, b.fed.server, exchange, full=full)
            if isinstance(reply, Failure):
                self.excluded[client] = reply.reason
            elif reply is Kind.NEED_FULL:
                self.need_full.append(client)
            else:
                yield client, reply
            self.on_progress(self.result)
