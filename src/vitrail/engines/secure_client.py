"""A client's side of secure aggregation: four exchanges of one round, whose secrets live in its private state.

    0 advertise   a public key for letters, one for masks, and a commitment to the seed of its own mask
    1 share       shares of that seed and of the mask key, a sealed letter to every neighbour
    2 mask        the method's own round; its sum parts leave as whole numbers under all masks
    3 open        for each neighbour one share: of the seed if its numbers arrived, of the mask key if they did not

A client answers each exchange once (client.py gives a stored reply to the same request and refuses another), and the
last question has one bit for a neighbour: so it never gives both shares of one. It takes the threshold from its own
task, not from the server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vitrail.errors import Malformed, VitrailError
from vitrail.methods.base import Declared, Task
from vitrail.privacy import primitives, secagg
from vitrail.privacy.modular import layout
from vitrail.privacy.noise import Source
from vitrail.privacy.secagg import SECRET, SHARE, Graph, Shown
from vitrail.state import State
from vitrail.wire.codecs import Array
from vitrail.wire.message import Message, Part, make_part

ADVERTISE, SHARES, MASK, OPEN = range(4)
KEYS, WHO, LETTER, ALIVE, OPENED = (f"secagg.{name}" for name in ("keys", "who", "letter", "alive", "opened"))


@dataclass(frozen=True)
class Party:
    """Who answers, in which round of what."""

    name: str
    run: bytes
    round: int
    task: Task
    declared: Mapping[str, Declared]

    def graph(self, names: list[str]) -> Graph:
        """The round's graph, if it is one this client takes part in."""
        t, n = self.task.secure, len(names)
        if len(set(names)) != n or self.name not in names:
            raise Malformed(f"the list of {n} clients names one twice or leaves {self.name!r} out")
        if not t <= n <= self.task.clients or 2 * t <= n:
            raise Malformed(f"{n} clients take part; at least {t} and fewer than {2 * t} must, of {self.task.clients}")
        return Graph(self.run, self.round, tuple(names), t)


def expects(secrets: State, exchange: int) -> None:
    """Refuse an exchange that does not follow the last one; nothing is computed for it."""
    if exchange > OPEN or exchange != secrets.get("stage", -1) + 1:
        raise Malformed(f"exchange {exchange} of secure aggregation does not follow {secrets.get('stage', 'none')}")


def step(
    me: Party, message: Message, secrets: State, parts: tuple[Part, ...], source: Source
) -> tuple[State, tuple[Part, ...]]:
    """Answer one exchange: the secrets to keep, and what leaves. `parts` is what the method wants to send."""
    match message.header.exchange:
        case 0:
            after, sent = _advertise(source)
        case 1:
            after, sent = _share(me, message, secrets, source)
        case 2:
            after, sent = _mask(me, secrets, parts)
        case _:
            after, sent = _open(me, message, secrets)
    return {**after, "stage": message.header.exchange}, sent


def _advertise(source: Source) -> tuple[State, tuple[Part, ...]]:
    letters, masks, seed = (source(SECRET) for _ in range(3))
    public = primitives.public
    shown = Shown(public(letters), public(masks), secagg.commitment(seed))
    return {"letters": letters, "masks": masks, "seed": seed}, (_bytes(KEYS, shown.pack()),)


def _share(me: Party, message: Message, secrets: State, source: Source) -> tuple[State, tuple[Part, ...]]:
    names = read_names(message)
    graph = me.graph(names)
    i = names.index(me.name)
    keys = {p.peer: bytes(p.array()) for p in message.parts if p.name == KEYS}
    if set(keys) != {names[j] for j in graph.neighbours(i)} or len(set(keys.values())) != len(keys):
        raise Malformed("the keys are not those of this client's neighbours, one each")
    shown = {peer: Shown.read(raw) for peer, raw in keys.items()}
    holders = graph.holders(i)
    points = [j + 1 for j in holders]
    shares = [
        a + b
        for a, b in zip(
            secagg.split(source, secrets["seed"], graph.need, points),
            secagg.split(source, secrets["masks"], graph.need, points),
            strict=True,
        )
    ]
    parts = []
    for j, share in zip(holders, shares, strict=True):
        if j != i:
            key = primitives.agree(secrets["letters"], shown[names[j]].letters, secagg.letter(graph, i, j))
            parts.append(_bytes(LETTER, primitives.seal(key, share), names[j]))
    held = {me.name: shares[holders.index(i)]}
    return {**secrets, "names": names, "keys": _whole(keys), "held": _whole(held)}, tuple(parts)


def read_letters(me: Party, message: Message, secrets: State) -> State:
    """What neighbours sent this client; before it trains, for without them it could not send."""
    names, keys = secrets["names"], _by_name(secrets["keys"])
    graph, i = me.graph(names), names.index(me.name)
    letters = {p.peer: bytes(p.array()) for p in message.parts if p.name == LETTER}
    if not set(letters) <= set(keys) or len(letters) + 1 < graph.need:
        raise Malformed(f"letters of {len(letters)} neighbours; at least {graph.need - 1} of {len(keys)} are needed")
    held = _by_name(secrets["held"])
    for peer, letter in letters.items():
        purpose = secagg.letter(graph, names.index(peer), i)
        try:
            held[peer] = primitives.unseal(
                primitives.agree(secrets["letters"], Shown.read(keys[peer]).letters, purpose), letter
            )
            if len(held[peer]) != 2 * SHARE:
                raise Malformed(f"{len(held[peer])} bytes are not two shares")
        except Malformed as e:
            raise Malformed(f"the letter from {peer!r} is refused: {e}") from None
    return {**secrets, "held": _whole(held)}


def _mask(me: Party, secrets: State, parts: tuple[Part, ...]) -> tuple[State, tuple[Part, ...]]:
    names, keys = secrets["names"], _by_name(secrets["keys"])
    kinds, vector = layout(me.declared, me.task.clients, len(names)), {}
    made = {p.name: p for p in parts}
    if set(made) != set(kinds):
        raise VitrailError(f"the method made {', '.join(sorted(made))}; it declared {', '.join(kinds)}")
    for name, whole in kinds.items():
        try:
            vector[name] = whole.words(made[name].array())
        except VitrailError as e:
            raise VitrailError(f"its part {name!r} cannot be sent: {e}") from None
    secagg.add_mask(vector, secagg.own_key(secrets["seed"]), +1)
    graph, i = me.graph(names), names.index(me.name)
    for peer in set(_by_name(secrets["held"])) - {me.name}:
        j, theirs = names.index(peer), Shown.read(keys[peer]).masks
        key = primitives.agree(secrets["masks"], theirs, secagg.pair(graph, i, j))
        secagg.add_mask(vector, key, secagg.sign(i, j))
    sent = tuple(_bytes(name, kinds[name].pack(words)) for name, words in vector.items())
    return {"names": names, "held": secrets["held"]}, sent  # keys and seed have done their work


def _open(me: Party, message: Message, secrets: State) -> tuple[State, tuple[Part, ...]]:
    names, held = secrets["names"], _by_name(secrets["held"])
    told = {p.name: p for p in message.parts}
    if set(told) != {ALIVE} or told[ALIVE].codec != "u1" or told[ALIVE].shape != (len(names),):
        raise Malformed(f"the question whose numbers arrived is not {len(names)} bits")
    alive = dict(zip(names, told[ALIVE].array().tolist(), strict=True))
    if not alive[me.name]:
        raise Malformed("this client's numbers were sent, so its mask key stays secret")
    known, need = sum(alive[p] for p in held), me.graph(names).need
    if known < need or sum(alive.values()) < me.task.secure:
        raise Malformed(f"the numbers of {known} neighbours arrived; with fewer than {need} nothing is opened")
    opened = b"".join(held[p][:SHARE] if alive[p] else held[p][SHARE:] for p in sorted(held, key=names.index))
    return {}, (_bytes(OPENED, opened),)


def read_names(message: Message) -> list[str]:
    """The list of clients that a request names."""
    text = next((bytes(p.array()) for p in message.parts if p.name == WHO), b"")
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names) or write_names(names) != text:
        raise Malformed("the request does not name the clients of the round")
    return names


def write_names(names: list[str]) -> bytes:
    """A list of clients as bytes."""
    return json.dumps(names, ensure_ascii=False, separators=(",", ":")).encode()


def _bytes(name: str, raw: bytes, peer: str = "") -> Part:
    array: Array = np.frombuffer(raw, np.uint8)
    return make_part(name, "bytes", array, peer)


def _whole(by_name: Mapping[str, bytes]) -> State:
    """Many short texts of one length as one, which is quicker to save."""
    return {"of": list(by_name), "bytes": b"".join(by_name.values())}


def _by_name(whole: State) -> dict[str, bytes]:
    each = len(whole["bytes"]) // max(1, len(whole["of"]))
    return {name: whole["bytes"][k * each : (k + 1) * each] for k, name in enumerate(whole["of"])}
