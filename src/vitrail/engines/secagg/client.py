"""A client's side of secure aggregation: five exchanges of one round, whose secrets live in its private state.

    0 advertise   public keys for letters and masks, a commitment to the seed of its own mask; signed by its own key
    1 share       shares of that seed and of the mask key, a sealed letter to every other client
    2 mask        the method's own round; its sum parts leave as whole numbers under all masks
    3 confirm     a signature over whose numbers arrived, among which clients with which keys
    4 open        of each client one share: of the seed if its numbers arrived, of the mask key if they did not

A client answers each exchange once (client.py gives a stored reply to the same request and refuses another), so it
signs one list and never gives both shares of one client. It opens nothing before `threshold` clients have signed the
list that it signed (the consistency check of Bonawitz et al. 2017). It takes the threshold from its own task, not from
the server, and the keys that others are known by from its owner, where the owner named a folder of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vitrail.engines.secagg import primitives
from vitrail.engines.secagg import shares as secagg
from vitrail.engines.secagg.integers import layout
from vitrail.engines.secagg.shares import SECRET, SHARE, SHOWN, Group, Share
from vitrail.methods.base import PartSpec, Task
from vitrail.privacy.noise import Source
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.keys import SIGNATURE, Key, signed_by
from vitrail.utils.state import State
from vitrail.wire.codecs import Array
from vitrail.wire.message import Message, Part, make_part

if TYPE_CHECKING:
    from vitrail.engines.signing.server import ClientKeys

ADVERTISE, SHARES, MASK, CONFIRM, OPEN = range(5)
PREFIX = "secagg."  # of the names of all parts below; one array each, in the order of the clients' names
KEYS, WHO, FROM, LETTERS, ALIVE, SIGNATURES, OPENED = (
    PREFIX + name for name in ("keys", "who", "from", "letters", "alive", "signatures", "opened")
)


@dataclass(frozen=True)
class SecAggClient:
    """Who answers, in which round of what."""

    name: str
    run: bytes
    round: int
    task: Task
    declared: Mapping[str, PartSpec]
    key: Key | None = None  # that others know it by; None: a new one is drawn for each round
    peers: ClientKeys | None = None  # the keys that other clients must have; None: those that the server hands on

    def group(self, names: list[str]) -> Group:
        """The clients of the round, if this client takes part with them."""
        t, n = self.task.secagg_threshold, len(names)
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
    me: SecAggClient, message: Message, secrets: State, parts: tuple[Part, ...], source: Source
) -> tuple[State, tuple[Part, ...]]:
    """Answer one exchange: the secrets to keep, and what leaves. `parts` is what the method wants to send."""
    match message.header.exchange:
        case 0:
            after, sent = _advertise(me, source)
        case 1:
            after, sent = _share(me, message, secrets, source)
        case 2:
            after, sent = _mask(me, secrets, parts)
        case 3:
            after, sent = _confirm(me, message, secrets)
        case _:
            after, sent = _open(me, message, secrets)
    return {**after, "stage": message.header.exchange}, sent


def _advertise(me: SecAggClient, source: Source) -> tuple[State, tuple[Part, ...]]:
    letters, masks, seed = (source(SECRET) for _ in range(3))
    secrets: State = {"letters": letters, "masks": masks, "seed": seed}
    if me.key is None:
        secrets["key"] = source(SECRET)
    own = Share.make(me.run, me.round, me.name, letters, masks, seed, _key(me, secrets)).pack()
    return {**secrets, "shown": own}, (bytes_part(KEYS, own),)


def _key(me: SecAggClient, secrets: State) -> Key:
    return me.key or Key(secrets["key"])


def _share(me: SecAggClient, message: Message, secrets: State, source: Source) -> tuple[State, tuple[Part, ...]]:
    names = read_names(message)
    group, i = me.group(names), names.index(me.name)
    raw = _told(message, KEYS, SHOWN * len(names))
    shown = [Share.read(raw[k : k + SHOWN]) for k in range(0, len(raw), SHOWN)]
    if shown[i].pack() != secrets["shown"] or len({theirs.signer for theirs in shown}) != len(names):
        raise Malformed("the keys are not those of the clients, one each, and this client's among them")
    for peer, theirs in zip(names, shown, strict=True):
        theirs.check(me.run, me.round, peer)
        if me.peers is not None and peer != me.name:
            me.peers.meet(peer, theirs.signer)
    points = range(1, len(names) + 1)
    seeds = secagg.split(source, secrets["seed"], group.threshold, points)
    masks = secagg.split(source, secrets["masks"], group.threshold, points)
    letters = []
    for j in range(len(names)):
        if j != i:
            key = primitives.agree(secrets["letters"], shown[j].letters, secagg.letter(group, i, j))
            letters.append(primitives.seal(key, seeds[j] + masks[j]))
    held = _whole({me.name: seeds[i] + masks[i]})
    return {**secrets, "names": names, "keys": raw, "held": held}, (bytes_part(LETTERS, b"".join(letters)),)


def read_letters(me: SecAggClient, message: Message, secrets: State) -> State:
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


def _mask(me: SecAggClient, secrets: State, parts: tuple[Part, ...]) -> tuple[State, tuple[Part, ...]]:
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
    done = ("letters", "masks", "seed", "shown")
    return {name: kept for name, kept in secrets.items() if name not in done}, sent


def _confirm(me: SecAggClient, message: Message, secrets: State) -> tuple[State, tuple[Part, ...]]:
    names, held = secrets["names"], set(secrets["held"]["of"])
    bits = _told_bits(message, ALIVE, len(names))
    alive = {name for name, arrived in zip(names, bits, strict=True) if arrived}
    if me.name not in alive:
        raise Malformed("this client's numbers were sent, so its mask key stays secret")
    if len(alive) < me.task.secagg_threshold or not alive <= held:
        raise Malformed(
            f"the numbers of {len(alive)} clients arrived, {len(alive & held)} of which shared their secrets; with "
            f"fewer than {me.task.secagg_threshold}, or others than those, nothing is opened"
        )
    signature = _key(me, secrets).sign(*secagg.view(me.group(names), secrets["keys"], bits))
    kept = {name: secrets[name] for name in ("names", "keys", "held")}
    return {**kept, "alive": bytes(bits)}, (bytes_part(SIGNATURES, signature),)


def _open(me: SecAggClient, message: Message, secrets: State) -> tuple[State, tuple[Part, ...]]:
    names, alive, held = secrets["names"], secrets["alive"], _by_name(secrets["held"])
    signers = [j for j, signed in enumerate(_told_bits(message, FROM, len(names))) if signed]
    raw = _told(message, SIGNATURES, SIGNATURE * len(signers))
    if len(signers) < me.task.secagg_threshold or not all(alive[j] for j in signers):
        raise Malformed(f"{len(signers)} clients signed whose numbers arrived; {me.task.secagg_threshold} are required")
    view = secagg.view(me.group(names), secrets["keys"], alive)
    for at, j in enumerate(signers):
        if not signed_by(_shown(secrets, j).signer, raw[SIGNATURE * at : SIGNATURE * (at + 1)], *view):
            raise Malformed(f"{names[j]!r} did not sign what this client was told: nothing is opened")
    opened = b"".join(held[p][:SHARE] if alive[j] else held[p][SHARE:] for j, p in enumerate(names) if p in held)
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


def _shown(secrets: State, j: int) -> Share:
    """The keys that client j has shown."""
    return Share.read(secrets["keys"][SHOWN * j : SHOWN * (j + 1)])


def _whole(by_name: Mapping[str, bytes]) -> State:
    """Many short texts of one length as one, which is quicker to save."""
    return {"of": list(by_name), "bytes": b"".join(by_name.values())}


def _by_name(whole: State) -> dict[str, bytes]:
    each = len(whole["bytes"]) // max(1, len(whole["of"]))
    return {name: whole["bytes"][k * each : (k + 1) * each] for k, name in enumerate(whole["of"])}
