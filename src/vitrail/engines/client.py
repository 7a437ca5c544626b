"""A client as every engine runs it: a request's bytes in, a reply's bytes out, private state in its own file.

State and reply are stored together or not at all, and a repeated request returns the stored reply. Where an owner
limits or counts answers (`Client.records_requests`), the request is stored before training starts: the answer counts
even if it fails, and after a crash only the same request is computed again. Other clients save this write.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from vitrail.data.dataset import Images
from vitrail.engines.client_store import ClientStore
from vitrail.engines.replies import encode_parts, reason_part
from vitrail.engines.signing.server import ClientKeys
from vitrail.methods.base import Method, ServerMessage
from vitrail.privacy.budget import Budget
from vitrail.privacy.mechanism import Mechanism
from vitrail.privacy.noise import operating_system, seeded
from vitrail.privacy.policy import PUBLIC_REASON, Policy
from vitrail.utils.errors import Malformed, Refused, VitrailError
from vitrail.utils.keys import Key
from vitrail.utils.paths import data_home
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire.message import NO_BASE, Header, Kind, Message, Part, decode, digest, encode

UNCOMPUTED = "its reply could not be computed; see its own log"  # all that the server is sent in deployment


@dataclass(frozen=True)
class Client:
    """One participant of a run.

    Args:
        name: Its name.
        method: The method, as this client runs it.
        run: Id of the run.
        rng: Random stream that all clients of the run derive theirs from.
        images: Returns the client's images; called when they are needed.
        folder: Folder of its private file.
        budget: What its owner lets it spend on privacy; None: not counted.
        policy: The least that its owner requires of a run; None: every run is accepted.
        log: Receives reasons of refusals and failures for the owner, which are then not sent; None: they are sent.
        shared_folder: Whether another process may answer for this client at the same time.
        key: Key that other clients know it by in secure aggregation; None: a new one for each round.
        peers: Keys that other clients must have in secure aggregation; None: any.
    """

    name: str
    method: Method
    run: bytes
    rng: Rng
    images: Callable[[], Images]
    folder: Path
    budget: Budget | None = None
    policy: Policy | None = None
    log: Callable[[str], None] | None = None
    shared_folder: bool = False
    key: Key | None = None
    peers: ClientKeys | None = None

    @property
    def records_requests(self) -> bool:
        """Whether a request is stored before it is answered, and a failure as its answer."""
        return self.shared_folder or any(of is not None for of in (self.budget, self.policy, self.log))

    @property
    def store(self) -> ClientStore:
        """The private file."""
        return ClientStore(self.folder, self.name, self.run)

    @property
    def mechanism(self) -> Mechanism | None:
        """The method's mechanism, with the noise that counts under the policy."""
        mechanism = self.method.mechanism
        return self.policy.counted(mechanism) if self.policy and mechanism else mechanism

    def answer(self, request: bytes) -> bytes:
        """Answer a request.

        Args:
            request: An encoded message of the server.

        Returns:
            The encoded reply, or an encoded message with the reason of a failure. No exception leaves this function.
        """
        try:
            message = decode(request)
        except Malformed as e:
            return self.refuse(f"the request is malformed: {e}")
        try:
            with self.store.lock() if self.shared_folder else nullcontext():
                return self._answer(message, digest(request))
        except Exception as e:  # the round must continue without this client
            return self._failure(message.header, self._reason(e))

    def refuse(self, reason: str) -> bytes:
        """Return the answer to a request that cannot be read."""
        return self._failure(Header(Kind.REQUEST, self.run, 0, "server"), reason)

    def _answer(self, message: Message, request: bytes) -> bytes:
        """Return the stored reply to a repeated request, refuse a replay, or compute a new reply."""
        h = message.header
        if h.kind is not Kind.REQUEST or h.run != self.run:
            raise Malformed("the request belongs to another run")
        stored = self.store.load()
        this_round = stored if stored and stored["round"] == h.round else {"answered": []}
        answered, unfinished = this_round["answered"], this_round.get("begun")
        for earlier in answered:
            if earlier["asked"] == request:
                return earlier["reply"]
        mark = {"exchange": h.exchange, "asked": request}
        again = unfinished == mark  # killed before its reply was stored, so no reply was sent
        last = max((one["exchange"] for one in (*answered, unfinished) if one), default=-1)
        lacks = h.base not in (NO_BASE, stored["holds"] if stored else NO_BASE)
        if lacks and (stored is None or h.round >= stored["round"]):  # also if it replied to the full state before
            return self._encode(Kind.NEED_FULL, h)
        if stored is not None and not again and (h.round < stored["round"] or h.exchange <= last):
            raise Malformed(f"round {h.round} was answered before, to another request: a replay is refused")
        if self.policy is not None:
            self.policy.check(self.method)
        return self._compute(message, stored, answered, mark, again)

    def _compute(
        self, message: Message, stored: State | None, answered: list[State], mark: State, again: bool
    ) -> bytes:
        """Compute a reply and store it with the state after it."""
        h, rng = message.header, self.rng.child("client", self.name)
        state = self.method.client_init(self.name, rng.child("init")) if stored is None else stored["state"]
        tree = {"run": self.run, "holds": NO_BASE, "trained": False, **(stored or {}), "round": h.round, "state": state}
        tree["secrets"] = tree.get("secrets", {}) if answered else {}  # secure aggregation's, of this round
        tree["answered"], tree["begun"] = answered, None
        try:
            if self.method.task.secagg_threshold:
                parts = self._secure(message, tree, rng, mark, again)
            else:
                parts = self._train(message, tree, rng.child(h.round, h.exchange), mark, again, h.exchange)
            reply = self._encode(Kind.REPLY, h, parts)
            self.store.save({**tree, "begun": None, "answered": [*answered, {**mark, "reply": reply}]})
        except Exception as e:
            if tree["begun"] is None:
                raise
            return self._store_failure(e, h, mark)
        return reply

    def _train(
        self, message: Message, tree: State, rng: Rng, mark: State, again: bool, exchange: int = 0
    ) -> tuple[Part, ...]:
        """Run the method's client round; `tree` is updated with the state after it."""
        incoming = ServerMessage(
            message.header.round,
            {p.name: p.array() for p in message.parts if not p.peer},
            {(p.peer, p.name): p.array() for p in message.parts if p.peer},
            exchange,
        )
        data = self._admit(tree, mark, again)
        tree["state"], reply = self.method.client_round(tree["state"], incoming, data, rng)
        tree["trained"] = True
        tree["holds"] = reply.state_id
        return encode_parts(reply, self.method.reply_spec())

    def _secure(self, message: Message, tree: State, rng: Rng, mark: State, again: bool) -> tuple[Part, ...]:
        """Run one exchange of secure aggregation; the method's client round is in the third."""
        from vitrail.engines.secagg import client as secagg
        from vitrail.engines.secagg.messages import ADVERTISE, MASK, PREFIX

        h, task = message.header, self.method.task
        me = secagg.SecAggClient(self.name, self.run, h.round, task, self.method.reply_spec(), self.key, self.peers)
        secagg.check_order(tree["secrets"], h.exchange)
        parts: tuple[Part, ...] = ()
        if h.exchange == ADVERTISE:
            self._images()  # a client without images fails before others depend on it
        if h.exchange == MASK:
            tree["secrets"] = secagg.read_letters(me, message, tree["secrets"])
            own = replace(message, parts=tuple(p for p in message.parts if not p.name.startswith(PREFIX)))
            parts = self._train(own, tree, rng.child(h.round, 0), mark, again)  # same stream as without aggregation
        source = seeded(rng.child(h.round, "secrets", h.exchange)) if task.noise_source == "seed" else operating_system
        tree["secrets"], sent = secagg.step(me, message, tree["secrets"], parts, source)
        return sent

    def _admit(self, tree: State, mark: State, again: bool) -> Images:
        """Count one more answer, if the owner allows it, before anything is computed from images.

        Args:
            tree: The private state; stored with `mark` as `begun` if the client records requests.
            mark: The request that is answered.
            again: Whether this request was started, and counted, before a crash.

        Returns:
            The images.

        Raises:
            Refused: The owner's policy or budget allows no further answer.
        """
        if self.policy is not None:
            self.policy.check(self.method, tree.get("given", 0) - again)  # a server may request more than planned
        mechanism, budget = self.mechanism, self.budget
        repeats = mechanism is not None and mechanism.once and tree["trained"]
        if mechanism is not None and mechanism.once and tree.get("failed") and not repeats:
            raise Refused("its one release of this run failed; a second would draw new noise", PUBLIC_REASON)
        request = digest(self.run, self.name, mark["asked"]).hex()
        if budget is None or repeats or again or budget.has(request):
            data = self._images()
        else:
            budget.check(mechanism)
            data = self._images()
            budget.charge(mechanism, self.run, tree["round"], request)  # a failure is an answer, too
        tree["given"] = tree.get("given", 0) - again + 1
        if self.records_requests:
            self.store.save({**tree, "begun": mark})
            tree["begun"] = mark
        return data

    def _images(self) -> Images:
        images = self.images()
        if not len(images):
            raise VitrailError("it has no images")
        return images

    def _store_failure(self, e: Exception, h: Header, mark: State) -> bytes:
        """Store a failure as the answer to a request that was started, and return it.

        Images were read: in deployment the reason stays with the owner, because it may depend on them.
        """
        deployed = self.shared_folder or self.log is not None
        reply = self._failure(h, UNCOMPUTED if deployed else self._reason(e))
        tree = self.store.load()  # the state before training, which may have changed arrays in place
        assert tree is not None  # noqa: S101  _admit stored it
        failed, answered = tree.get("failed", 0) + 1, [*tree["answered"], {**mark, "reply": reply}]
        self.store.save({**tree, "begun": None, "failed": failed, "answered": answered})
        if deployed:
            self.store.save_error(traceback.format_exc())
        if self.log is not None:
            self.log(f"its reply to round {h.round} could not be computed: {type(e).__name__}: {e}")
        return reply

    def _reason(self, e: Exception) -> str:
        """What the server is sent of an error: no paths of this machine, and of an owner's refusal its category only.

        The text of an unexpected error may contain private data; it stays in the client's folder.
        """
        if isinstance(e, Refused) and self.log is not None:
            self.log(str(e))
            return e.public
        if not isinstance(e, VitrailError):
            self.store.save_error(traceback.format_exc())
            return f"{type(e).__name__}; details are in the client's own folder"
        text = str(e)
        for place in (self.folder, data_home()):
            text = text.replace(f"{place}/", "")
        return text

    def _failure(self, request: Header, reason: str) -> bytes:
        return self._encode(Kind.FAILED, request, (reason_part(reason),))

    def _encode(self, kind: Kind, request: Header, parts: tuple[Part, ...] = ()) -> bytes:
        return encode(Message(Header(kind, self.run, request.round, self.name, request.exchange), parts))
