"""A client's side of secure aggregation: five exchanges per round (messages.py), with secrets in its private state.

A client answers each exchange once, so it never sends both shares of one client. It sends no share before `threshold`
clients have signed the list that it signed (the consistency check of Bonawitz et al. 2017). The threshold comes from
its own task, not from the server, and the keys of other clients from its owner, if the owner has provided them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vitrail.engines.secagg import messages
from vitrail.engines.secagg import shares as secagg
from vitrail.engines.secagg.messages import bytes_part, integer_formats, read_bits, read_bytes, read_names
from vitrail.engines.secagg.shares import ADVERTISED, SECRET, SHARE, AdvertisedKeys, Group
from vitrail.engines.signing.server import ClientKeys
from vitrail.methods.base import PartSpec, Task
from vitrail.privacy.noise import Source
from vitrail.utils import crypto
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.keys import SIGNATURE, Key, signed_by
from vitrail.utils.state import State
from vitrail.wire.message import Message, Part

Step = tuple[State, tuple[Part, ...]]  # the secrets after an exchange, and the parts to send


@dataclass(frozen=True)
class SecAggClient:
    """A client in one round of secure aggregation.

    Args:
        name: Its name.
        run: Id of the run.
        round: Number of the round.
        task: The task; it has the threshold.
        declared: The method's `reply_spec`.
        key: Key that other clients know it by; None: a new one is drawn for each round.
        peers: Keys that other clients must have; None: those that the server passes on.
    """

    name: str
    run: bytes
    round: int
    task: Task
    declared: Mapping[str, PartSpec]
    key: Key | None = None
    peers: ClientKeys | None = None

    def group(self, names: list[str]) -> Group:
        """Return the clients of the round; raise Malformed if this client does not take part with them."""
        t, n = self.task.secagg_threshold, len(names)
        if len(set(names)) != n or self.name not in names:
            raise Malformed(f"the list of {n} clients has a duplicate or does not include {self.name!r}")
        if not t <= n <= self.task.clients or 2 * t <= n:
            raise Malformed(f"{n} clients take part; at least {t} and fewer than {2 * t} must, of {self.task.clients}")
        return Group(self.run, self.round, tuple(names), t)

    def signing_key(self, secrets: State) -> Key:
        """Return the key that this client signs with in this round."""
        return self.key or Key(secrets["key"])


def check_order(secrets: State, exchange: int) -> None:
    """Raise Malformed if an exchange does not follow the last one."""
    if exchange > messages.OPEN or exchange != secrets.get("stage", -1) + 1:
        raise Malformed(f"exchange {exchange} of secure aggregation does not follow {secrets.get('stage', 'none')}")


def step(me: SecAggClient, message: Message, secrets: State, parts: tuple[Part, ...], source: Source) -> Step:
    """Answer one exchange.

    Args:
        me: The client.
        message: The server's request.
        secrets: The client's secrets of this round.
        parts: The parts of the method's reply, in exchange `MASK`.
        source: Source of random bytes.

    Returns:
        The secrets to store, and the parts to send.
    """
    exchange = message.header.exchange
    steps: dict[int, Callable[[], Step]] = {
        messages.ADVERTISE: lambda: _advertise(me, source),
        messages.SHARES: lambda: _share(me, message, secrets, source),
        messages.MASK: lambda: _mask(me, secrets, parts),
        messages.CONFIRM: lambda: _confirm(me, message, secrets),
        messages.OPEN: lambda: _open(me, message, secrets),
    }
    after, sent = steps[exchange]()
    return {**after, "stage": exchange}, sent


def _advertise(me: SecAggClient, source: Source) -> Step:
    """Exchange 0: draw secrets and advertise public keys."""
    letters, masks, seed = (source(SECRET) for _ in range(3))
    secrets: State = {"letters": letters, "masks": masks, "seed": seed}
    if me.key is None:
        secrets["key"] = source(SECRET)
    own = AdvertisedKeys.make(me.run, me.round, me.name, letters, masks, seed, me.signing_key(secrets)).pack()
    return {**secrets, "shown": own}, (bytes_part(messages.KEYS, own),)


def _share(me: SecAggClient, message: Message, secrets: State, source: Source) -> Step:
    """Exchange 1: check all keys, and send every other client a share of both secrets."""
    names = read_names(message)
    group, i = me.group(names), names.index(me.name)
    raw = read_bytes(message, messages.KEYS, ADVERTISED * len(names))
    keys = [AdvertisedKeys.read(raw[k : k + ADVERTISED]) for k in range(0, len(raw), ADVERTISED)]
    if keys[i].pack() != secrets["shown"] or len({k.signer for k in keys}) != len(names):
        raise Malformed("the keys are not one per client, with this client's own among them")
    for peer, advertised in zip(names, keys, strict=True):
        advertised.check(me.run, me.round, peer)
        if me.peers is not None and peer != me.name:
            me.peers.meet(peer, advertised.signer)
    points = range(1, len(names) + 1)
    seeds = secagg.split(source, secrets["seed"], group.threshold, points)
    masks = secagg.split(source, secrets["masks"], group.threshold, points)
    letters = []
    for j in range(len(names)):
        if j != i:
            key = crypto.agree(secrets["letters"], keys[j].letters, secagg.letter(group, i, j))
            letters.append(crypto.seal(key, seeds[j] + masks[j]))
    received = _join_by_name({me.name: seeds[i] + masks[i]})  # stored under "held": the key is part of the format
    sent = bytes_part(messages.LETTERS, b"".join(letters))
    return {**secrets, "names": names, "keys": raw, "held": received}, (sent,)


def read_letters(me: SecAggClient, message: Message, secrets: State) -> State:
    """Decrypt the letters of other clients, before training: without them the client could not send its reply.

    Returns:
        The secrets with the shares of the other clients.

    Raises:
        Malformed: There are fewer letters than the threshold requires, or one cannot be decrypted.
    """
    names, i = secrets["names"], secrets["names"].index(me.name)
    group = me.group(names)
    senders = [j for j, sent in enumerate(read_bits(message, messages.FROM, len(names))) if sent and j != i]
    if len(senders) + 1 < group.threshold:
        raise Malformed(f"letters of {len(senders)} clients; at least {group.threshold - 1} are needed")
    raw = read_bytes(message, messages.LETTERS, secagg.LETTER * len(senders))
    received = _split_by_name(secrets["held"])
    for at, j in enumerate(senders):
        key = crypto.agree(secrets["letters"], _keys_of(secrets, j).letters, secagg.letter(group, j, i))
        try:
            received[names[j]] = crypto.unseal(key, raw[secagg.LETTER * at : secagg.LETTER * (at + 1)])
        except Malformed as e:
            raise Malformed(f"the letter from {names[j]!r} is refused: {e}") from None
    return {**secrets, "held": _join_by_name(received)}


def _mask(me: SecAggClient, secrets: State, parts: tuple[Part, ...]) -> Step:
    """Exchange 2: send the method's parts as masked integers."""
    names = secrets["names"]
    formats, vector = integer_formats(me.declared, me.task.clients, len(names)), {}
    made = {p.name: p for p in parts}
    if set(made) != set(formats):
        raise VitrailError(f"the method returned {', '.join(sorted(made))}; it declared {', '.join(formats)}")
    for name, part in formats.items():
        try:
            vector[name] = part.words(made[name].array())
        except VitrailError as e:
            raise VitrailError(f"its part {name!r} cannot be sent: {e}") from None
    secagg.add_mask(vector, secagg.own_key(secrets["seed"]), +1)
    group, i = me.group(names), names.index(me.name)
    for j in sorted(map(names.index, secrets["held"]["of"])):
        if j != i:
            key = crypto.agree(secrets["masks"], _keys_of(secrets, j).masks, secagg.pair(group, i, j))
            secagg.add_mask(vector, key, secagg.sign(i, j))
    sent = tuple(bytes_part(name, formats[name].pack(words)) for name, words in vector.items())
    used = ("letters", "masks", "seed", "shown")
    return {name: value for name, value in secrets.items() if name not in used}, sent


def _confirm(me: SecAggClient, message: Message, secrets: State) -> Step:
    """Exchange 3: sign the list of clients whose masked replies arrived."""
    names, received = secrets["names"], set(secrets["held"]["of"])
    bits = read_bits(message, messages.ALIVE, len(names))
    alive = {name for name, arrived in zip(names, bits, strict=True) if arrived}
    if me.name not in alive:
        raise Malformed("this client's masked reply was sent, so its mask key stays secret")
    if len(alive) < me.task.secagg_threshold or not alive <= received:
        raise Malformed(
            f"the replies of {len(alive)} clients arrived, {len(alive & received)} of which shared their secrets; "
            f"no share is sent for fewer than {me.task.secagg_threshold}, or for clients that shared none"
        )
    signature = me.signing_key(secrets).sign(*secagg.view(me.group(names), secrets["keys"], bits))
    needed = {name: secrets[name] for name in ("names", "keys", "held")}
    return {**needed, "alive": bytes(bits)}, (bytes_part(messages.SIGNATURES, signature),)


def _open(me: SecAggClient, message: Message, secrets: State) -> Step:
    """Exchange 4: check that enough clients signed the same list, then send one share of each client."""
    names, alive, received = secrets["names"], secrets["alive"], _split_by_name(secrets["held"])
    signers = [j for j, signed in enumerate(read_bits(message, messages.FROM, len(names))) if signed]
    raw = read_bytes(message, messages.SIGNATURES, SIGNATURE * len(signers))
    if len(signers) < me.task.secagg_threshold or not all(alive[j] for j in signers):
        raise Malformed(
            f"{len(signers)} clients signed; {me.task.secagg_threshold} are required, of which all replies arrived"
        )
    view = secagg.view(me.group(names), secrets["keys"], alive)
    for at, j in enumerate(signers):
        if not signed_by(_keys_of(secrets, j).signer, raw[SIGNATURE * at : SIGNATURE * (at + 1)], *view):
            raise Malformed(f"{names[j]!r} did not sign the list that this client was sent: no share is sent")
    sent = b"".join(
        received[p][:SHARE] if alive[j] else received[p][SHARE:] for j, p in enumerate(names) if p in received
    )
    return {}, (bytes_part(messages.OPENED, sent),)


def _keys_of(secrets: State, j: int) -> AdvertisedKeys:
    """The advertised keys of client j."""
    return AdvertisedKeys.read(secrets["keys"][ADVERTISED * j : ADVERTISED * (j + 1)])


def _join_by_name(by_name: Mapping[str, bytes]) -> State:
    """Many byte strings of equal length as one, which is faster to save."""
    return {"of": list(by_name), "bytes": b"".join(by_name.values())}


def _split_by_name(joined: State) -> dict[str, bytes]:
    each = len(joined["bytes"]) // max(1, len(joined["of"]))
    return {name: joined["bytes"][k * each : (k + 1) * each] for k, name in enumerate(joined["of"])}
