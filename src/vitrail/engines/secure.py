"""The server's side of secure aggregation, above any engine: four exchanges, and of the numbers only their sum.

Masked numbers are added as they arrive, so memory is that of one reply, and what one client sent is never without its
masks here: those are taken away from the sum alone. secure_client.py lists the exchanges; privacy/secagg.py is the
arithmetic. Who vanishes before its masked numbers are in is left out; who vanishes after is in the sum all the same.

The server is trusted to pass keys on as they came and to tell all clients the same story; then what it sees tells
nothing but the sum, also together with fewer than the threshold of clients. Clients refuse every question that would
give both secrets of one of them, or open fewer than the threshold (see there). A server that swaps keys for its own is
not kept out: that takes keys which clients can check by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from vitrail.engines.post import Post
from vitrail.engines.replies import Failure, Taken, read_reply
from vitrail.engines.rounds import Ask, Tell
from vitrail.engines.secure_client import (
    ADVERTISE,
    ALIVE,
    KEYS,
    LETTER,
    MASK,
    OPEN,
    OPENED,
    SHARES,
    WHO,
    write_names,
)
from vitrail.errors import VitrailError, reason_of
from vitrail.methods.base import Declared, Method, Sums
from vitrail.privacy import secagg
from vitrail.privacy.modular import Whole, Words, layout
from vitrail.privacy.opening import left_in_sum
from vitrail.privacy.secagg import SHARE, Graph, Shown
from vitrail.wire.message import Header, Kind, Message, Part, encode, make_part


def check_secure(method: Method, asked: int | None = None) -> None:
    """Refuse a method or a threshold that secure aggregation cannot serve; `asked`: clients a round, if not all."""
    task, n = method.task, asked or method.task.clients
    if not task.secure:
        return
    singly = sorted(name for name, d in method.declares().items() if d.how != "sum")
    if singly:
        raise VitrailError(
            f"secure aggregation shows the server sums alone, and this method sends {', '.join(singly)} singly: "
            "use a method whose parts are all sums (prism, fedgan), or secure=0"
        )
    layout(method.declares(), task.clients, n)
    if not (2 <= task.secure <= n < 2 * task.secure):
        raise VitrailError(
            f"secure={task.secure} with {n} clients a round: it must be more than half of them, or a server could "
            f"ask one half for one kind of share and the other half for the other, and at most all of them; "
            f"use {max(2, n // 2 + 1)} to {n}"
        )


def gather(method: Method, post: Post, who: Sequence[str], ask: Ask, tell: Tell) -> Sums | Failure:
    """All exchanges of one round: the sums of those whose numbers arrived, or why there are none."""
    layout(method.declares(), method.task.clients, len(who))  # what cannot be masked stops the run here
    talk = _Talk(post, ask, tell)
    names = talk.advertise(who)
    if len(names) < method.task.secure:
        return _too_few(names, who, method, "showed their keys")
    graph = Graph(post.run, post.fed.round, tuple(names), method.task.secure)
    talk.share(graph)
    if len(talk.letters) < method.task.secure:
        return _too_few(talk.letters, who, method, "shared their secrets")
    kinds = layout(method.declares(), method.task.clients, len(names))
    total = talk.masked(graph, kinds)
    alive = post.outcome.answered
    if len(alive) < method.task.secure:
        return _too_few(alive, who, method, "sent their numbers")
    opened = talk.opened(graph, alive)
    try:
        for key, way in left_in_sum(graph, set(talk.letters), set(alive), talk.keys, opened):
            secagg.add_mask(total, key, way)
        return Sums({name: kind.total(total[name], len(alive)) for name, kind in kinds.items()}, len(alive))
    except Exception as e:
        return Failure(reason_of(e))


def _too_few(left: Iterable[str], who: Sequence[str], method: Method, did: str) -> Failure:
    return Failure(f"{len(list(left))} of {len(who)} clients {did}, {method.task.secure} must remain to open a sum")


class _Talk:
    """The exchanges with all clients; who fails one is left out of the rest."""

    def __init__(self, post: Post, ask: Ask, tell: Tell) -> None:
        self.post, self.ask, self.tell, self.outcome = post, ask, tell, post.outcome
        self.lost = self.outcome.left_out
        self.keys: dict[str, Shown] = {}
        self.letters: dict[str, dict[str, Part]] = {}  # by sender, then by recipient

    def advertise(self, who: Sequence[str]) -> list[str]:
        """Exchange 0: who takes part, in order; their keys are kept."""
        expected = {KEYS: Declared("each", "bytes", secagg.SHOWN)}
        for client, reply in self._exchange(ADVERTISE, dict.fromkeys(who, ()), lambda _: expected):
            try:
                self.keys[client] = Shown.read(bytes(reply[0].array)).check()
            except Exception as e:
                self.lost[client] = f"reply refused: {reason_of(e)}"
        return [c for c in who if c in self.keys]

    def share(self, graph: Graph) -> None:
        """Exchange 1: letters between neighbours are kept, closed as they are."""
        names = graph.names
        listed = make_part(WHO, "bytes", np.frombuffer(write_names(list(names)), np.uint8))
        shown = {c: make_part(KEYS, "bytes", np.frombuffer(k.pack(), np.uint8)) for c, k in self.keys.items()}
        neighbours = {c: [names[j] for j in graph.neighbours(i)] for i, c in enumerate(names)}
        tell = {c: (listed, *(_from(shown[p], p) for p in neighbours[c])) for c in names}
        expected = {LETTER: Declared("relay", "bytes", secagg.LETTER)}
        for client, reply in self._exchange(SHARES, tell, lambda _: expected):
            letters = {x.part.peer: x.part for x in reply}
            if sorted(letters) == sorted(neighbours[client]):
                self.letters[client] = letters
            else:
                self.lost[client] = "reply refused: its letters are not for its neighbours"

    def masked(self, graph: Graph, kinds: Mapping[str, Whole]) -> dict[str, Words]:
        """Exchange 2, the method's own round: the sum of all masked numbers that arrive."""
        total = {name: kind.zeros() for name, kind in kinds.items()}
        expected = {name: Declared("each", "bytes", kind.wire_bytes) for name, kind in kinds.items()}
        members = [c for c in graph.names if c in self.letters]

        def letters_to(client: str) -> list[Part]:
            return [_from(self.letters[c][client], c) for c in members if client in self.letters[c]]

        again: list[str] = []  # clients that hold another state than the server thought
        for full, group in ((False, members), (True, again)):
            for client, reply in self._answers(
                MASK, self.post.requests(group, full, MASK, letters_to), lambda _: expected, None if full else again
            ):
                try:
                    words = {x.part.name: kinds[x.part.name].unpack(x.array) for x in reply}
                except Exception as e:
                    self.lost[client] = f"reply refused: {reason_of(e)}"
                    continue
                for name, a in words.items():
                    total[name] += a
                self.outcome.answered.append(client)
                self.outcome.floats_up += sum(4 * kind.size for kind in kinds.values())
        return total

    def opened(self, graph: Graph, alive: Collection[str]) -> dict[int, dict[int, bytes]]:
        """Exchange 3: by client, the shares of its one secret that is asked for, by who gave them."""
        alive = set(alive)
        bits = make_part(ALIVE, "u1", np.array([c in alive for c in graph.names], np.uint8))
        order = {c: i for i, c in enumerate(graph.names)}
        held = {order[c]: [i for i in graph.holders(order[c]) if graph.names[i] in self.letters] for c in alive}
        expected = {i: {OPENED: Declared("each", "bytes", SHARE * len(those))} for i, those in held.items()}
        shares: dict[int, dict[int, bytes]] = {order[c]: {} for c in self.letters}
        tell = {c: (bits,) for c in graph.names if c in alive}
        self.lost = {}  # who vanishes now is in the sum all the same
        replies = dict(self._exchange(OPEN, tell, lambda c: expected[order[c]]))
        for j in sorted(order[c] for c in replies):
            raw = bytes(replies[graph.names[j]][0].array)
            for at, i in enumerate(held[j]):
                shares[i][j] = raw[SHARE * at : SHARE * (at + 1)]
        return shares

    def _exchange(
        self, exchange: int, tell: Mapping[str, Sequence[Part]], expected: Callable[[str], Mapping[str, Declared]]
    ) -> Iterator[tuple[str, tuple[Taken, ...]]]:
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
        expected: Callable[[str], Mapping[str, Declared]],
        again: list[str] | None = None,
    ) -> Iterator[tuple[str, tuple[Taken, ...]]]:
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


def _from(part: Part, peer: str) -> Part:
    """A part as its recipient gets it."""
    return Part(part.name, part.codec, part.shape, part.payload, peer)
