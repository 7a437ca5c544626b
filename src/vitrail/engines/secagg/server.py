"""The server's side of secure aggregation, above any engine: five exchanges, and of the numbers only their sum.

Masked numbers are added as they arrive, so memory is that of one reply, and what one client sent is never without its
masks here: those are taken away from the sum alone. client.py lists the exchanges; shares.py is the
arithmetic. Who vanishes before its masked numbers are in is left out; who vanishes after is in the sum all the same.

A server that follows these exchanges learns the sum alone, also together with fewer than the threshold of clients. One
that tells clients different lists of whose numbers arrived gets no shares, unless it has 2 threshold - n of the n
clients on its side, which sign both. One that hands on keys of its own is refused by clients that know each other's
keys (`peer-keys` of a node); the others trust it to hand on keys as they came.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from vitrail.engines.replies import CheckedPart, Failure, read_reply
from vitrail.engines.requests import RequestBuilder
from vitrail.engines.rounds import Ask, Tell
from vitrail.engines.secagg import shares as secagg
from vitrail.engines.secagg.client import (
    ADVERTISE,
    ALIVE,
    CONFIRM,
    FROM,
    KEYS,
    LETTERS,
    MASK,
    OPEN,
    OPENED,
    SHARES,
    SIGNATURES,
    WHO,
    bits_part,
    bytes_part,
    write_names,
)
from vitrail.engines.secagg.integers import Whole, Words, layout
from vitrail.engines.secagg.shares import SHARE, Group, Share
from vitrail.engines.secagg.unmasking import left_in_sum
from vitrail.methods.base import Method, PartSpec, Sums
from vitrail.utils.errors import VitrailError, reason_of
from vitrail.utils.keys import SIGNATURE, signed_by
from vitrail.wire.message import Header, Kind, Message, Part, encode


def check_secure(method: Method, asked: int | None = None) -> None:
    """Refuse a method or a threshold that secure aggregation cannot serve; `asked`: clients a round, if not all."""
    task, n = method.task, asked or method.task.clients
    if not task.secagg_threshold:
        return
    singly = sorted(name for name, d in method.reply_spec().items() if d.how != "sum")
    if singly:
        raise VitrailError(
            f"secure aggregation shows the server sums alone, and this method sends {', '.join(singly)} singly: "
            "use a method whose parts are all sums (prism, fedgan), or secagg_threshold=0"
        )
    layout(method.reply_spec(), task.clients, n)
    if not (2 <= task.secagg_threshold <= n < 2 * task.secagg_threshold):
        raise VitrailError(
            f"secagg_threshold={task.secagg_threshold} with {n} clients per round: it must be more "
            f"than half of them, or each half could be told a list of its own and open it, and at most all of them; "
            f"use {max(2, n // 2 + 1)} to {n}"
        )


def gather(method: Method, post: RequestBuilder, who: Sequence[str], ask: Ask, tell: Tell) -> Sums | Failure:
    """All exchanges of one round: the sums of those whose numbers arrived, or why there are none."""
    layout(method.reply_spec(), method.task.clients, len(who))  # what cannot be masked stops the run here
    talk = _Talk(post, ask, tell)
    names = talk.advertise(who)
    if len(names) < method.task.secagg_threshold:
        return _too_few(names, who, method, "showed their keys")
    group = Group(post.run, post.fed.round, tuple(names), method.task.secagg_threshold)
    talk.share(group)
    if len(talk.letters) < method.task.secagg_threshold:
        return _too_few(talk.letters, who, method, "shared their secrets")
    kinds = layout(method.reply_spec(), method.task.clients, len(names))
    total = talk.masked(group, kinds)
    alive = post.outcome.replied
    if len(alive) < method.task.secagg_threshold:
        return _too_few(alive, who, method, "sent their numbers")
    signatures = talk.confirmed(group, alive)
    if len(signatures) < method.task.secagg_threshold:
        return _too_few(signatures, who, method, "confirmed whose numbers arrived")
    opened = talk.opened(group, signatures)
    try:
        for key, way in left_in_sum(group, set(talk.letters), set(alive), talk.keys, opened):
            secagg.add_mask(total, key, way)
        return Sums({name: kind.total(total[name], len(alive)) for name, kind in kinds.items()}, len(alive))
    except Exception as e:
        return Failure(reason_of(e))


def _too_few(left: Iterable[str], who: Sequence[str], method: Method, did: str) -> Failure:
    return Failure(
        f"{len(list(left))} of {len(who)} clients {did}, {method.task.secagg_threshold} must remain to open a sum"
    )


class _Talk:
    """The exchanges with all clients; who fails one is left out of the rest."""

    def __init__(self, post: RequestBuilder, ask: Ask, tell: Tell) -> None:
        self.post, self.ask, self.tell, self.outcome = post, ask, tell, post.outcome
        self.lost = self.outcome.excluded
        self.keys: dict[str, Share] = {}
        self.letters: dict[str, bytes] = {}  # by sender: its letters to all others, in order

    def advertise(self, who: Sequence[str]) -> list[str]:
        """Exchange 0: who takes part, in order; their keys are kept."""
        expected = {KEYS: PartSpec("each", "bytes", secagg.SHOWN)}
        for client, reply in self._exchange(ADVERTISE, dict.fromkeys(who, ()), lambda _: expected):
            try:
                shown = Share.read(bytes(reply[0].array)).check_points()
                self.keys[client] = shown.check(self.post.run, self.post.fed.round, client)
            except Exception as e:
                self.lost[client] = f"reply refused: {reason_of(e)}"
        signers: set[bytes] = set()
        for client in [c for c in who if c in self.keys]:
            if self.keys[client].signer in signers:  # the others would refuse both
                self.lost[client] = "reply refused: it shows the key of another client"
                del self.keys[client]
            else:
                signers.add(self.keys[client].signer)
        return [c for c in who if c in self.keys]

    def share(self, group: Group) -> None:
        """Exchange 1: letters between clients are kept, closed as they are."""
        listed = bytes_part(WHO, write_names(list(group.names)))
        shown = bytes_part(KEYS, self._all_keys(group))
        expected = {LETTERS: PartSpec("each", "bytes", secagg.LETTER * (len(group.names) - 1))}
        for client, reply in self._exchange(SHARES, dict.fromkeys(group.names, (listed, shown)), lambda _: expected):
            self.letters[client] = bytes(reply[0].array)

    def masked(self, group: Group, kinds: Mapping[str, Whole]) -> dict[str, Words]:
        """Exchange 2, the method's own round: the sum of all masked numbers that arrive."""
        total = {name: kind.zeros() for name, kind in kinds.items()}
        expected = {name: PartSpec("each", "bytes", kind.wire_bytes) for name, kind in kinds.items()}
        members = [c for c in group.names if c in self.letters]
        order = {c: i for i, c in enumerate(group.names)}
        senders = bits_part(FROM, [c in self.letters for c in group.names])

        def letters_to(client: str) -> tuple[Part, Part]:
            raw, k = bytearray(), order[client]
            for c in members:
                if c != client:
                    at = secagg.LETTER * (k - (k > order[c]))  # no letter of its own is among a sender's
                    raw += self.letters[c][at : at + secagg.LETTER]
            return senders, bytes_part(LETTERS, bytes(raw))

        again: list[str] = []  # clients that hold another state than the server thought
        for full, asked in ((False, members), (True, again)):
            for client, reply in self._answers(
                MASK, self.post.requests(asked, full, MASK, letters_to), lambda _: expected, None if full else again
            ):
                try:
                    words = {x.part.name: kinds[x.part.name].unpack(x.array) for x in reply}
                except Exception as e:
                    self.lost[client] = f"reply refused: {reason_of(e)}"
                    continue
                for name, a in words.items():
                    total[name] += a
                self.outcome.replied.append(client)
                self.outcome.floats_up += sum(4 * kind.size for kind in kinds.values())
        return total

    def _all_keys(self, group: Group) -> bytes:
        return b"".join(self.keys[c].pack() for c in group.names)

    def confirmed(self, group: Group, alive: Collection[str]) -> dict[str, bytes]:
        """Exchange 3: the signatures of those who were told whose numbers arrived."""
        bits = [c in alive for c in group.names]
        view = secagg.view(group, self._all_keys(group), bits)
        expected = {SIGNATURES: PartSpec("each", "bytes", SIGNATURE)}
        self.lost = {}  # who vanishes from now on is in the sum all the same
        told = {c: (bits_part(ALIVE, bits),) for c in group.names if c in alive}
        replies = {c: bytes(reply[0].array) for c, reply in self._exchange(CONFIRM, told, lambda _: expected)}
        return {c: s for c, s in replies.items() if signed_by(self.keys[c].signer, s, *view)}

    def opened(self, group: Group, signatures: Mapping[str, bytes]) -> dict[int, dict[int, bytes]]:
        """Exchange 4: by client, the shares of its one secret that is asked for, by who gave them."""
        names = group.names
        members = [i for i, c in enumerate(names) if c in self.letters]
        signers = [c for c in names if c in signatures][: group.threshold]  # more prove no more
        told = (
            bits_part(FROM, [c in signers for c in names]),
            bytes_part(SIGNATURES, b"".join(signatures[c] for c in signers)),
        )
        expected = {OPENED: PartSpec("each", "bytes", SHARE * len(members))}
        replies = dict(self._exchange(OPEN, {c: told for c in names if c in signatures}, lambda _: expected))
        shares: dict[int, dict[int, bytes]] = {i: {} for i in members}
        for j in sorted(names.index(c) for c in replies):
            raw = bytes(replies[names[j]][0].array)
            for at, i in enumerate(members):
                shares[i][j] = raw[SHARE * at : SHARE * (at + 1)]
        return shares

    def _exchange(
        self, exchange: int, tell: Mapping[str, Sequence[Part]], expected: Callable[[str], Mapping[str, PartSpec]]
    ) -> Iterator[tuple[str, tuple[CheckedPart, ...]]]:
        def requests() -> Iterator[tuple[str, bytes]]:
            for client, parts in tell.items():
                header = Header(Kind.REQUEST, self.post.run, self.post.fed.round, "server", exchange)
                request = encode(Message(header, tuple(parts)))
                self.outcome.down[client] = self.outcome.down.get(client, 0) + len(request)
                yield client, request

        return self._answers(exchange, requests(), expected)

    def _answers(
        self,
        exchange: int,
        requests: Iterator[tuple[str, bytes]],
        expected: Callable[[str], Mapping[str, PartSpec]],
        again: list[str] | None = None,
    ) -> Iterator[tuple[str, tuple[CheckedPart, ...]]]:
        """Replies that are what they should be; of the others, who may be asked again and who is left out."""
        post = self.post
        for client, answer in self.ask(requests):
            self.outcome.up[client] = self.outcome.up.get(client, 0) + (len(answer) if isinstance(answer, bytes) else 0)
            reply = read_reply(answer, post.run, post.fed.round, client, expected(client), post.server, exchange)
            if reply == Kind.NEED_FULL and again is not None:
                again.append(client)
            elif isinstance(reply, Kind):
                self.lost[client] = "asked for the full state although it was just sent"
            elif isinstance(reply, Failure):
                self.lost[client] = reply.reason
            else:
                yield client, reply
            self.tell(self.outcome)
