"""A client as every engine runs it: a request's bytes in, a reply's bytes out, private state kept in its own file.

State and reply are stored together, whole or not at all. A repeated request gets the stored reply. Where an owner
limits or counts answers (`Client.counts`), the client also stores, before it trains, which request it answers: the
answer counts even if it fails, a failure is stored as the answer, and after a crash, when nothing was sent, only the
same request is computed again. Other clients save this write; killed while they train, they have not begun.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np

from vitrail.data.dataset import Images
from vitrail.methods.base import Method, Reply, ServerMessage
from vitrail.privacy.budget import Budget
from vitrail.privacy.mechanism import Mechanism
from vitrail.privacy.noise import operating_system, seeded
from vitrail.privacy.policy import PUBLIC, Policy
from vitrail.utils import state as store
from vitrail.utils.atomic import file_lock, write_atomically
from vitrail.utils.errors import Malformed, Refused, VitrailError
from vitrail.utils.keys import Key
from vitrail.utils.paths import data_home
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire.message import (
    LONGEST_REASON,
    NO_BASE,
    Header,
    Kind,
    Message,
    Part,
    decode,
    digest,
    encode,
    make_part,
)

if TYPE_CHECKING:
    from vitrail.engines.signing.server import ClientKeys

UNCOMPUTED = "its answer could not be computed; its own log says why"  # all that the server is sent in deployment


@dataclass(frozen=True)
class Client:
    """One participant: its name, how it gets its pictures, and the folder that holds its private state."""

    name: str
    method: Method
    run: bytes
    rng: Rng
    pictures: Callable[[], Images]
    folder: Path
    budget: Budget | None = None  # what its owner lets it spend on privacy; None: nobody counts
    policy: Policy | None = None  # the least that its owner lets a run promise; None: nothing is refused
    log: Callable[[str], None] | None = None  # where its owner reads why it refused; None: in the reply
    queues: bool = False  # a process may be asked for it while another, given up too early, still answers in its folder
    key: Key | None = None  # that other clients know it by in secure sums; None: a new one is drawn for each round
    peers: ClientKeys | None = None  # the keys that other clients must have in secure sums; None: any

    @property
    def counts(self) -> bool:
        """Whether each answer is stored as begun before it is computed, and as the answer if it fails."""
        return self.queues or any(of is not None for of in (self.budget, self.policy, self.log))

    def answer(self, request: bytes) -> bytes:
        """Do what a request asks for; a client that cannot says why instead of failing silently."""
        try:
            message = decode(request)
        except Malformed as e:
            return self.refuse(f"the request is malformed: {e}")
        h = message.header
        try:
            with self._turn():
                return self._answer(message, digest(request))
        except Refused as e:
            return self._fail(h.round, h.exchange, self._refused(e))
        except VitrailError as e:
            return self._fail(h.round, h.exchange, self._said(e))
        except Exception as e:  # whatever it was, the round must go on
            return self._fail(h.round, h.exchange, self._unforeseen(e))

    def refuse(self, reason: str) -> bytes:
        """Say why a request is not even read."""
        return self._fail(0, 0, reason)

    def _turn(self) -> AbstractContextManager[None]:
        """Wait for a process that answers for this client already; asked the same, this one says what that said."""
        return file_lock(self.folder / ".lock") if self.queues else nullcontext()

    def _answer(self, message: Message, asked: bytes) -> bytes:
        h = message.header
        if h.kind is not Kind.REQUEST or h.run != self.run:
            raise Malformed("the request belongs to another run")
        kept = self.private()
        answered = kept["answered"] if kept is not None and kept["round"] == h.round else []
        for earlier in answered:
            if earlier["asked"] == asked:
                stored: bytes = earlier["reply"]
                return stored
        begun = kept.get("begun") if kept is not None and kept["round"] == h.round else None
        mark = {"exchange": h.exchange, "asked": asked}
        again = begun == mark  # killed before its reply was stored, so nothing was sent
        last = max((one["exchange"] for one in (*answered, begun) if one), default=-1)
        lacks = h.base not in (NO_BASE, kept["holds"] if kept else NO_BASE)
        if lacks and (kept is None or h.round >= kept["round"]):  # also when it answered to all of it: ask that again
            return self._say(Kind.NEED_FULL, h.round, h.exchange)
        if kept is not None and not again and (h.round < kept["round"] or h.exchange <= last):
            raise Malformed(f"round {h.round} was answered before, to another request: a replay is refused")

        if self.policy is not None:
            self.policy.check(self.method)

        rng = self.rng.child("client", self.name)
        before = self.method.client_init(self.name, rng.child("init")) if kept is None else kept["state"]
        kept = {"run": self.run, "holds": NO_BASE, "trained": False, **(kept or {}), "round": h.round, "state": before}
        kept["secrets"] = kept.get("secrets", {}) if answered else {}  # secure aggregation's, of this round
        kept["answered"], kept["begun"] = answered, None
        try:
            if self.method.task.secagg_threshold:
                parts = self._secure(message, kept, rng, mark, again)
            else:
                parts = self._train(message, kept, rng.child(h.round, h.exchange), mark, again, h.exchange)
            sent = self._say(Kind.REPLY, h.round, h.exchange, parts)
            self._keep({**kept, "begun": None, "answered": [*answered, {**mark, "reply": sent}]})
        except Exception as e:
            if kept["begun"] is None:
                raise
            return self._uncomputed(e, h, mark)  # images were read: the server may learn no more than that it failed
        return sent

    def _train(
        self, message: Message, kept: State, rng: Rng, mark: State, again: bool, exchange: int = 0
    ) -> tuple[Part, ...]:
        """The method's own round: what it sends, and in `kept` what it leaves behind."""
        incoming = ServerMessage(
            message.header.round,
            {p.name: p.array() for p in message.parts if not p.peer},
            {(p.peer, p.name): p.array() for p in message.parts if p.peer},
            exchange,
        )
        data = self._begin(kept, mark, again)
        kept["state"], reply = self.method.client_round(kept["state"], incoming, data, rng)
        kept["trained"] = True
        kept["holds"] = reply.holds
        return self._parts(reply)

    def _begin(self, kept: State, mark: State, again: bool) -> Images:
        """Count one more answer, if it may be given, before anything is computed from images.

        Args:
            kept: The private state. It is stored with `mark` as `begun`, where the client counts.
            mark: The request that is answered.
            again: Whether this request was begun, and counted, before a crash.

        Returns:
            The images.

        Raises:
            Refused: The owner's policy or budget allows no further answer.
        """
        given = kept.get("given", 0) - again  # answers made from images; a server may ask more often than it planned
        if self.policy is not None:
            self.policy.check(self.method, given)
        mechanism = self._counted()
        repeats = kept["trained"] and _once(mechanism)
        if _once(mechanism) and kept.get("failed") and not repeats:
            raise Refused("its one release of this run failed; a second would draw new noise", PUBLIC)
        request = digest(self.run, self.name, mark["asked"]).hex()
        spends = self.budget is not None and not repeats and not again and not self.budget.has(request)
        if self.budget and spends:
            self.budget.check(mechanism)
        data = self._data()
        if self.budget and spends:  # written before it is computed: a failure is an answer, too
            self.budget.charge(mechanism, self.run, kept["round"], request)
        kept["given"] = given + 1
        if self.counts:
            self._keep({**kept, "begun": mark})
            kept["begun"] = mark
        return data

    def _uncomputed(self, e: Exception, h: Header, mark: State) -> bytes:
        """Store a failure as the answer to a request that was begun, and return it.

        In deployment its reason stays with the owner, because it may depend on images.
        """
        deployed = self.queues or self.log is not None
        reason = UNCOMPUTED
        if not deployed:
            reason = self._said(e) if isinstance(e, VitrailError) else self._unforeseen(e)
        sent = self._fail(h.round, h.exchange, reason)
        kept = self.private()  # as it was before training, which may have changed arrays in place
        assert kept is not None  # noqa: S101  _begin stored it
        failed = kept.get("failed", 0) + 1
        self._keep({**kept, "begun": None, "failed": failed, "answered": [*kept["answered"], {**mark, "reply": sent}]})
        if deployed:
            self._note(traceback.format_exc())
        if self.log is not None:
            self.log(f"its answer to round {h.round} could not be computed: {type(e).__name__}: {e}")
        return sent

    def _unforeseen(self, e: Exception) -> str:
        """What the server is sent of an error that is not vitrail's own; its text may tell of the data."""
        self._note(traceback.format_exc())
        return f"{type(e).__name__}; details are in the client's own folder"

    def _counted(self) -> Mechanism | None:
        """The mechanism with the noise that counts: where there is a policy, only what its owner lets count."""
        mechanism = self.method.mechanism
        return mechanism if mechanism is None or self.policy is None else self.policy.counted(mechanism)

    def _secure(self, message: Message, kept: State, rng: Rng, mark: State, again: bool) -> tuple[Part, ...]:
        """One exchange of secure aggregation; the method's own round is in the third of them."""
        from vitrail.engines.secagg import client as secure

        h, task = message.header, self.method.task
        me = secure.SecAggClient(self.name, self.run, h.round, task, self.method.reply_spec(), self.key, self.peers)
        secure.expects(kept["secrets"], h.exchange)
        parts: tuple[Part, ...] = ()
        if h.exchange == secure.ADVERTISE:
            self._data()  # who holds nothing says so before others count on it
        if h.exchange == secure.MASK:
            kept["secrets"] = secure.read_letters(me, message, kept["secrets"])
            told = replace(message, parts=tuple(p for p in message.parts if not p.name.startswith(secure.PREFIX)))
            own = rng.child(h.round, 0)  # as it draws without secure aggregation
            parts = self._train(told, kept, own, mark, again)
        source = seeded(rng.child(h.round, "secrets", h.exchange)) if task.noise_source == "seed" else operating_system
        kept["secrets"], sent = secure.step(me, message, kept["secrets"], parts, source)
        return sent

    def _data(self) -> Images:
        pictures = self.pictures()
        if not len(pictures):
            raise VitrailError("it holds no pictures")
        return pictures

    def _parts(self, reply: Reply) -> tuple[Part, ...]:
        """Encode what the method declared; anything else stays here."""
        declared = self.method.reply_spec()
        named = [(name, "", a) for name, a in reply.parts.items()]
        named += [(name, to, a) for (to, name), a in reply.relay.items()]
        parts = []
        for name, to, array in named:
            if name not in declared or (declared[name].how == "relay") != bool(to):
                raise VitrailError(f"part {name!r} is not declared by the method, so it does not leave the client")
            if name.startswith("metric."):  # a loss that is beyond its range excludes nobody
                limit = declared[name].limit
                array = np.nan_to_num(np.asarray(array), nan=limit).clip(-limit, limit)  # noqa: PLW2901
            try:
                parts.append(make_part(name, declared[name].codec, np.asarray(array), to))
            except VitrailError as e:
                raise VitrailError(f"its part {name!r} cannot be sent: {e}") from e
        return tuple(parts)

    def _say(self, kind: Kind, round_: int, exchange: int, parts: tuple[Part, ...] = ()) -> bytes:
        return encode(Message(Header(kind, self.run, round_, self.name, exchange), parts))

    def _said(self, e: VitrailError) -> str:
        """What went wrong, without the places on this machine where it did."""
        said = str(e)
        for place in (self.folder, data_home()):
            said = said.replace(f"{place}/", "")
        return said

    def _refused(self, e: Refused) -> str:
        """What the server is sent of an owner's refusal; in deployment the reasons are the owner's alone."""
        if self.log is None:
            return self._said(e)
        self.log(str(e))
        return e.public

    def _fail(self, round_: int, exchange: int, reason: str) -> bytes:
        text = np.frombuffer(reason.encode()[:LONGEST_REASON], np.uint8)
        return self._say(Kind.FAILED, round_, exchange, (make_part("reason", "bytes", text),))

    @property
    def path(self) -> Path:
        """The file of this client's private state."""
        return private_file(self.folder, self.name)

    def private(self) -> State | None:
        """What this client keeps, or None before its first round; another run's is refused."""
        try:
            kept: State = store.load(self.path)
        except FileNotFoundError:
            return None
        if kept.get("run") != self.run:
            raise VitrailError(f"{self.path.name} belongs to another run; move it away or use another folder")
        return kept

    def begin(self, state: State) -> None:
        """Let it begin with this state, which somebody made in its place: an auditor, who knows its keys."""
        self._keep({"run": self.run, "holds": NO_BASE, "trained": False, "round": -1, "answered": [], "state": state})

    def _keep(self, kept: State) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        store.save(self.path, kept, private=True)

    def _note(self, text: str) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self.path.with_suffix(".error.txt"), text.encode(), 0o600)


def private_file(folder: Path, client: str) -> Path:
    """Where a client keeps its private state; whatever it is called, it lies in the folder."""
    name = quote(client, safe=" ")
    return folder / f"{name if len(name) <= 150 else digest(client).hex()}.safetensors"


def _once(mechanism: Mechanism | None) -> bool:
    return mechanism is not None and mechanism.once
