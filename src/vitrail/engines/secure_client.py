"""A client's side of secure aggregation: four exchanges of one round, whose secrets live in its private state.

    0 advertise   a public key for letters, one for masks, and a commitment to the seed of its own mask
    1 share       shares of that seed and of the mask key, a sealed letter to every other client
    2 mask        the method's own round; its sum parts leave as whole numbers under all masks
    3 open        of each client one share: of the seed if its numbers arrived, of the mask key if they did not

A client answers each exchange once (client.py gives a stored reply to the same request and refuses another), and the
last question has one bit for a client: so it never gives both shares of one. It takes the threshold from its own
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
from vitrail.privacy.secagg import SECRET, SHARE, Group, Shown
from vitrail.state import State
from vitrail.wire.codecs import Array
from vitrail.wire.message import Message, Part, make_part

ADVERTISE, SHARES, MASK, OPEN = range(4)
PREFIX = "secagg."  # of the names of all parts below; one array each, in the order of the clients' names
KEYS, WHO, FROM, LETTERS, ALIVE, OPENED = (
    PREFIX + name for name in ("keys", "who", "from", "letters", "alive", "opened")
)


@dataclass(frozen=True)
class Party:
    """Who answers, in which round of what."""

    name: str
    run: bytes
    round: int
    task: Task
    declared: Mapping[str, Declared]

    def group(self, names: list[str]) -> Group:
        """The clients of the round, if this client takes part with them."""
        t, n = self.task.secure, len(names)
        if len(set(names)) != n or self.name not in names:
            raise Malformed(f"the list of {n} clients names one twice or leaves {self.name!r} out")
        if not t <= n <= self.task.clients or 2 * t <= n:
            raise Malformed(f"{n} clients take part; at least {t} and fewer than {2 * t} must, of {self.task.clients}")
        return Group(self.run, self.round, tuple(names), t)


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
    shown = Shown(public(letters), public(masks), secagg.commitment(seed)).pack()
    return {"letters": letters, "masks": masks, "seed": seed, "shown": shown}, (bytes_part(KEYS, shown),)


def _share(me: Party, message: Message, secrets: State, source: Source) -> tuple[State, tuple[Part, ...]]:
    names = read_names(message)
    group, i = me.group(names), names.index(me.name)
    raw = _told(message, KEYS, secagg.SHOWN * len(names))
    keys = [raw[k : k + secagg.SHOWN] for k in range(0, len(raw), secagg.SHOWN)]
    if keys[i] != secrets["shown"] or len(set(keys)) != len(keys):
        raise Malformed("the keys are not those of the clients, one each, and this client's among them")
    points = range(1, len(names) + 1)
    seeds = secagg.split(source, secrets["seed"], group.threshold, points)
    masks = secagg.split(source, secrets["masks"], group.threshold, points)
    letters = []
    for j in range(len(names)):
        if j != i:
            key = primitives.agree(secrets["letters"], Shown.read(keys[j]).letters, secagg.letter(group, i, j))
            letters.append(primitives.seal(key, seeds[j] + masks[j]))
    held = _whole({me.name: seeds[i] + masks[i]})
    return {**secrets, "names": names, "keys": raw, "held": held}, (bytes_part(LETTERS, b"".join(letters)),)


def read_letters(me: Party, message: Message, secrets: State) -> State:
    """What other clients sent this client; before it trains, for without them it could not send."""
    names, i = secrets["names"], secrets["names"].index(me.name)
    group = me.group(names)
    senders = [j for j, sent in enumerate(_told_bits(message, FROM, len(names))) if sent and j != i]
    if len(senders) + 1 < group.threshold:
        raise Malformed(f"letters of {len(senders)} clients; at least {group.threshold - 1} are needed")
    raw = _told(message, LETTERS, secagg.LETTER * len(senders))
    held = _by_name(secrets["held"])
    for at, j in enumerate(senders):
        key = primitives.agree(secrets["letters"], _shown(secrets, j).letters, secagg.letter(group, j, i))
        try:
            held[names[j]] = primitives.unseal(key, raw[secagg.LETTER * at : secagg.LETTER * (at + 1)])
        except Malformed as e:
            raise Malformed(f"the letter from {names[j]!r} is refused: {e}") from None
    return {**secrets, "held": _whole(held)}


def _mask(me: Party, secrets: State, parts: tuple[Part, ...]) -> tuple[State, tuple[Part, ...]]:
    names = secrets["names"]
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
    group, i = me.group(names), names.index(me.name)
    for j in sorted(map(names.index, secrets["held"]["of"])):
        if j != i:
            key = primitives.agree(secrets["masks"], _shown(secrets, j).masks, secagg.pair(group, i, j))
            secagg.add_mask(vector, key, secagg.sign(i, j))
    sent = tuple(bytes_part(name, kinds[name].pack(words)) for name, words in vector.items())
    return {"names": names, "held": secrets["held"]}, sent  # keys and seed have done their work


def _open(me: Party, message: Message, secrets: State) -> tuple[State, tuple[Part, ...]]:
    names, held = secrets["names"], _by_name(secrets["held"])
    alive = dict(zip(names, _told_bits(message, ALIVE, len(names)), strict=True))
    if not alive[me.name]:
        raise Malformed("this client's numbers were sent, so its mask key stays secret")
    known = sum(alive[p] for p in held)
    if known < me.task.secure or known < sum(alive.values()):
        raise Malformed(
            f"the numbers of {sum(alive.values())} clients arrived, {known} of which shared their secrets; with fewer "
            f"than {me.task.secure}, or others than those, nothing is opened"
        )
    opened = b"".join(held[p][:SHARE] if alive[p] else held[p][SHARE:] for p in names if p in held)
    return {}, (bytes_part(OPENED, opened),)


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


def bytes_part(name: str, raw: bytes) -> Part:
    """Bytes as a part."""
    array: Array = np.frombuffer(raw, np.uint8)
    return make_part(name, "bytes", array)


def bits_part(name: str, bits: list[bool]) -> Part:
    """One bit for each client as a part."""
    return make_part(name, "u1", np.array(bits, np.uint8))


def _told(message: Message, name: str, size: int) -> bytes:
    """A part of a request, of a known number of bytes."""
    raw = next((bytes(p.array()) for p in message.parts if p.name == name and p.codec == "bytes"), b"")
    if len(raw) != size:
        raise Malformed(f"part {name!r} of the request has {len(raw)} bytes; {size} are needed")
    return raw


def _told_bits(message: Message, name: str, size: int) -> list[int]:
    """A part of a request that has one bit for each client."""
    for p in message.parts:
        if (p.name, p.codec, p.shape) == (name, "u1", (size,)):
            bits: list[int] = p.array().tolist()
            return bits
    raise Malformed(f"part {name!r} of the request is not {size} bits")


def _shown(secrets: State, j: int) -> Shown:
    """The keys that client j has shown."""
    return Shown.read(secrets["keys"][secagg.SHOWN * j : secagg.SHOWN * (j + 1)])


def _whole(by_name: Mapping[str, bytes]) -> State:
    """Many short texts of one length as one, which is quicker to save."""
    return {"of": list(by_name), "bytes": b"".join(by_name.values())}


def _by_name(whole: State) -> dict[str, bytes]:
    each = len(whole["bytes"]) // max(1, len(whole["of"]))
    return {name: whole["bytes"][k * each : (k + 1) * each] for k, name in enumerate(whole["of"])}
