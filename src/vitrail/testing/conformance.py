"""The conformance checks that every method must pass: reproducibility, declared parts, refused messages, stored models.

Each check is a function of a `Subject` and raises AssertionError with what was expected.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.data.dataset import Images
from vitrail.engines.client import Client
from vitrail.engines.replies import Failure, read_reply
from vitrail.engines.rounds import Federation, RoundResult
from vitrail.experiment import settings as config
from vitrail.experiment.plugins import describe_method
from vitrail.methods.base import BaseMethod, Method, Model, Task
from vitrail.models.model_file import load, load_classifier, open_classifier, open_model, save_model
from vitrail.testing.federation import RUN, SEED, Traffic, digits, federate, same, shares
from vitrail.utils.errors import VitrailError
from vitrail.utils.registry import is_importable
from vitrail.utils.rng import Rng
from vitrail.utils.state import load as load_state
from vitrail.utils.state import save as save_state
from vitrail.wire.message import Kind, Message, decode, encode, make_part

CLASSES = tuple("0123456789")
TASK = Task((1, 8, 8), 10, 3, 3)  # three rounds of three clients with 24 digits each


@dataclass
class Subject:
    """A method under test, and a folder for its files.

    Args:
        method: The method; its task must be of 8x8 digits, three rounds and three clients.
        root: A folder; each check uses a new one in it.
    """

    method: Any  # a Method; Any, because checks replace its task
    root: Path
    _folders: int = field(default=0, repr=False)

    def folder(self) -> Path:
        """Return a new folder."""
        self._folders += 1
        return self.root / str(self._folders)

    @cached_property
    def reference(self) -> tuple[Federation, list[RoundResult], Traffic, Path]:
        """An undisturbed federation, run once for all checks."""
        folder = self.folder()
        fed, outcomes, traffic = federate(self.method, folder)
        _expect(all(len(o.replied) == o.requested for o in outcomes), f"a client was excluded: {outcomes[0].excluded}")
        return fed, outcomes, traffic, folder

    def client(self, folder: Path) -> Client:
        """Return one of the clients."""
        train = digits().train
        return Client("client-0", self.method, RUN, Rng((SEED,)), lambda: train.take(np.arange(24)), folder)

    def model(self, server: Any) -> Model:
        """Return the generator, or the classifier of a method without one."""
        models = self.method.export_models(server)
        found: Model = models.get("generator") or models["classifier"]
        return found

    def check_output(self, fed: Federation) -> None:
        """Expect images in [0, 1] that differ, or finite logits that differ."""
        model = self.model(fed.server)
        if model.kind == "classifier":
            logits = open_classifier(model, CLASSES).logits(torch.rand(30, 1, 8, 8))
            _expect(logits.shape == (30, 10), f"logits have shape {tuple(logits.shape)}, not (30, 10)")
            _expect(bool(logits.isfinite().all()) and not logits[0].equal(logits[10]), "logits are not finite or equal")
            return
        x = open_model(model, CLASSES).sample(30)
        _expect(x.shape == (30, 1, 8, 8), f"images have shape {tuple(x.shape)}, not (30, 1, 8, 8)")
        _expect(float(x.min()) >= 0 and float(x.max()) <= 1, "pixels are not in [0, 1]")
        _expect(not x[0].equal(x[10]), "all images are equal")


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _with_clients(outcomes: Sequence[RoundResult]) -> list[RoundResult]:
    """The rounds in which clients were selected; a method may have rounds without them."""
    found = [o for o in outcomes if o.requested]
    _expect(bool(found), "no round has clients")
    return found


def check_workers(subject: Subject) -> None:
    """Any number of worker processes gives the same bits."""
    if is_importable(type(subject.method)):
        fed, *_ = federate(subject.method, subject.folder(), workers=2)
        _expect(same(fed.tree(), subject.reference[0].tree()), "two workers give another result than one")


def check_order(subject: Subject) -> None:
    """Any order of clients gives the same bits."""
    fed, *_ = federate(subject.method, subject.folder(), reverse=True)
    _expect(same(fed.tree(), subject.reference[0].tree()), "the result depends on the order of clients")


def check_async(subject: Subject) -> None:
    """Asynchronous rounds give the same bits as rounds with a barrier."""
    for workers in (1, 2) if subject.method.num_async_rounds else ():
        fed, outcomes, _ = federate(subject.method, subject.folder(), ahead=3, workers=workers)
        _expect(same(fed.tree(), subject.reference[0].tree()), "asynchronous rounds give another result")
        _expect([asdict(o) for o in outcomes] == [asdict(o) for o in subject.reference[1]], "round results differ")


def check_resume(subject: Subject) -> None:
    """A run that is saved and resumed gives the bits of an uninterrupted one."""
    folder = subject.folder()
    half, *_ = federate(subject.method, folder / "clients", rounds=1)
    save_state(folder / "checkpoint", half.tree())
    loaded = Federation.from_tree(load_state(folder / "checkpoint"))
    fed, *_ = federate(subject.method, folder / "clients", rounds=2, fed=loaded)
    _expect(same(fed.tree(), subject.reference[0].tree()), "a resumed run gives another result")


def check_encoding(subject: Subject) -> None:
    """Every message is the same after decoding and encoding."""
    traffic = subject.reference[2]
    for _, data in traffic.requests + traffic.replies:
        _expect(encode(decode(data)) == data, "a message changes when it is decoded and encoded")


def check_byte_counts(subject: Subject) -> None:
    """Counted bytes are the bytes of the encoded messages, in both directions."""
    _, outcomes, traffic, _ = subject.reference
    for counted, sent in (("down", traffic.requests), ("up", traffic.replies)):
        for client in shares():
            total = sum(getattr(o, counted).get(client, 0) for o in outcomes)
            _expect(total == sum(len(b) for c, b in sent if c == client), f"bytes {counted} are counted wrongly")


def check_declared_parts(subject: Subject) -> None:
    """Replies have all declared parts and no others."""
    sent = {p.name for _, data in subject.reference[2].replies for p in decode(data).parts}
    declared = set(subject.method.reply_spec())
    _expect(sent == declared, f"replies have the parts {sorted(sent)}, reply_spec declares {sorted(declared)}")


def check_undeclared_part(subject: Subject) -> None:
    """A part that is not declared does not leave the client."""
    client = subject.client(subject.folder())
    method = type(subject.method)
    honest = method.client_round

    def leaky(self: Any, state: Any, message: Any, data: Images, rng: Rng) -> Any:
        state, reply = honest(self, state, message, data, rng)
        return state, replace(reply, parts={**reply.parts, "pixels": data.pixels})

    answer = _answer_with(method, leaky, client, subject.reference[2].requests[0][1])
    _expect(decode(answer).header.kind is Kind.FAILED, "an undeclared part was sent")
    _expect("pixels" in bytes(decode(answer).parts[0].array()).decode(), "the refusal does not name the part")


def _answer_with(method: type[Any], client_round: Any, client: Client, request: bytes) -> bytes:
    """A client's answer while `client_round` of the method's class is replaced."""
    own, before = "client_round" in vars(method), method.client_round
    method.client_round = client_round
    try:
        return client.answer(request)
    finally:
        if own:
            method.client_round = before
        else:
            del method.client_round


def check_repeated_request(subject: Subject) -> None:
    """A repeated request returns the stored reply."""
    client = subject.client(subject.folder())
    request = subject.reference[2].requests[0][1]
    first = client.answer(request)
    _expect(_answer_with(type(subject.method), None, client, request) == first, "a repeated request was computed again")
    _expect(decode(first).header.kind is Kind.REPLY, "the first request failed")


def check_bad_requests(subject: Subject) -> None:
    """A client refuses malformed and stale requests, and those of another run."""
    _, _, traffic, folder = subject.reference
    client = subject.client(folder)  # it has answered all rounds
    last, first = traffic.requests[-3][1], traffic.requests[0][1]
    message = decode(last)
    stale = [first] if decode(first).header.round < message.header.round else []  # some methods have one request
    foreign = encode(replace(message, header=replace(message.header, run=b"another run 1234")))
    for request in (last[:-1], b"", b"VTRL" + bytes(90), *stale, foreign):
        _expect(decode(client.answer(request)).header.kind is Kind.FAILED, "a client accepted a wrong request")


def check_bad_replies(subject: Subject) -> None:
    """The server refuses malformed and stale replies, and those of another run or client."""
    declared = subject.method.reply_spec()
    client, reply = subject.reference[2].replies[-1]
    t = decode(reply).header.round
    fed, *_ = federate(subject.method, subject.folder(), rounds=t)  # the server when the last replies came

    def refused(data: bytes, run: bytes = RUN, round_: int = t, name: str = client) -> bool:
        return isinstance(read_reply(data, run, round_, name, declared, fed.server), Failure)

    message = decode(reply)
    first = message.parts[0]
    longer = make_part(first.name, first.codec, np.append(first.array(), 0))
    changed = (
        message.parts[1:],
        (*message.parts[1:], longer),
        (*message.parts, make_part("extra", "float32", np.zeros(1))),
    )
    _expect(not refused(reply), "the server refused a correct reply")
    _expect(refused(reply[:-3]), "the server accepted a truncated reply")
    _expect(refused(reply, round_=t + 1), "the server accepted a reply of another round")
    _expect(refused(reply, run=b"another run 1234"), "the server accepted a reply of another run")
    _expect(refused(reply, name="client-9"), "the server accepted a reply of another client")
    for parts in changed:
        _expect(refused(encode(Message(message.header, parts))), "the server accepted a reply with other parts")


def check_garbage(subject: Subject) -> None:
    """A reply with NaN or garbage is excluded, and the round is that of the other clients."""

    def spoil(_: int, client: str, data: bytes) -> bytes:
        if client != "client-1":
            return data
        message = decode(data)
        part = next((p for p in message.parts if p.codec == "float32"), message.parts[0])
        nan = np.full(part.shape, np.nan, "<f4").tobytes()
        bad = replace(part, payload=nan if part.codec == "float32" else part.payload[::-1])
        return encode(Message(message.header, tuple(bad if p is part else p for p in message.parts)))

    def absent(_: int, client: str, data: bytes) -> bytes | Failure:
        return Failure("gone") if client == "client-1" else data

    fed, outcomes, _ = federate(subject.method, subject.folder(), spoil=spoil)
    for o in _with_clients(outcomes):
        _expect("refused" in o.excluded.get("client-1", ""), "the server accepted a reply of NaN or garbage")
        _expect(len(o.replied) == 2, "other clients were excluded with it")
    without, *_ = federate(subject.method, subject.folder(), spoil=absent)
    _expect(same(fed.tree(), without.tree()), "a refused reply changed the result")


def check_small_clients(subject: Subject) -> None:
    """Clients with one image, or with one class, take part."""
    labels = digits().train.labels
    for few in (np.arange(1), np.flatnonzero(labels == 3)[:20]):
        fed, outcomes, _ = federate(subject.method, subject.folder(), indices={**shares(), "client-0": few})
        for o in _with_clients(outcomes):
            _expect(
                o.replied == ["client-0", "client-1", "client-2"],
                f"a client with {len(few)} images is excluded: {o.excluded}",
            )
        subject.check_output(fed)


def check_empty_client(subject: Subject) -> None:
    """A client without images is excluded with this reason, and the round continues."""
    fed, outcomes, _ = federate(subject.method, subject.folder(), indices={**shares(), "client-0": np.arange(0)})
    for o in _with_clients(outcomes):
        reason = o.excluded.get("client-0", "")
        _expect("no pictures" in reason or "no images" in reason, f"a client without images: {reason!r}")
        _expect(len(o.replied) == 2, "other clients were excluded with it")
    subject.check_output(fed)


def check_lost_replies(subject: Subject) -> None:
    """After lost replies and a discarded round, all clients take part again."""
    requested = [o.requested for o in subject.reference[1]]
    lost = {(0, "client-2"), (1, "client-0"), (1, "client-1")}

    def spoil(t: int, client: str, data: bytes) -> bytes | Failure:
        return Failure("gone") if (t, client) in lost else data

    fed, outcomes, _ = federate(subject.method, subject.folder(), spoil=spoil, quorum=2)
    came = [n - sum(at == t for at, _ in lost) if n else 0 for t, n in enumerate(requested)]
    _expect([len(o.replied) for o in outcomes] == came, f"clients are excluded: {[o.excluded for o in outcomes]}")
    _expect([bool(o.void) for o in outcomes] == [False, requested[1] > 0, False], "the wrong round is discarded")
    subject.check_output(fed)


def check_unlabelled(subject: Subject) -> None:
    """Images without labels train a generator; a method of classifiers refuses them."""
    method = replace(subject.method, task=replace(subject.method.task, classes=0))
    try:
        method.reply_spec()
    except VitrailError as e:
        _expect("needs labels" in str(e), f"unlabelled images are refused with: {e}")
        return
    fed, outcomes, _ = federate(method, subject.folder(), train=Images(digits().train.pixels))
    for o in _with_clients(outcomes):
        _expect(len(o.replied) == 3, f"a client is excluded: {o.excluded}")
    shape = open_model(method.export_models(fed.server)["generator"], ()).sample(3).shape
    _expect(shape == (3, 1, 8, 8), f"images have shape {tuple(shape)}, not (3, 1, 8, 8)")


def check_training(subject: Subject) -> None:
    """Training changes the exported model."""
    start = subject.method.server_init(Rng((SEED,)).child("server", "init"))
    trained = subject.reference[0].server
    _expect(not same(subject.model(start).tree, subject.model(trained).tree), "training does not change the model")


def check_model_file(subject: Subject) -> None:
    """The stored model is the trained one: it generates the same images after loading."""
    fed, folder = subject.reference[0], subject.folder()
    folder.mkdir(parents=True)
    model, path = subject.model(fed.server), folder / "m.safetensors"
    save_model(path, model, CLASSES, {"made": "here"})
    subject.check_output(fed)
    if model.kind == "classifier":
        images = torch.rand(9, 1, 8, 8, generator=torch.Generator().manual_seed(1))
        logits = load_classifier(path).logits(images)
        _expect(logits.equal(open_classifier(model, CLASSES).logits(images)), "the stored classifier differs")
        return
    stored, direct = load(path), open_model(model, CLASSES)
    _expect(stored.sample(20, seed=3).equal(direct.sample(20, seed=3)), "the stored generator differs")
    _expect(not stored.sample(20, seed=3).equal(stored.sample(20, seed=4)), "two seeds give the same images")
    if stored.classes:
        one, many = stored.sample(7, label=3, seed=1), stored.sample(7, label=[3] * 7, seed=1)
        _expect(one.equal(many), "one label for all images differs from a list of it")


CHECKS: tuple[Callable[[Subject], None], ...] = (
    check_workers,
    check_order,
    check_async,
    check_resume,
    check_encoding,
    check_byte_counts,
    check_declared_parts,
    check_undeclared_part,
    check_repeated_request,
    check_bad_requests,
    check_bad_replies,
    check_garbage,
    check_small_clients,
    check_empty_client,
    check_lost_replies,
    check_unlabelled,
    check_training,
    check_model_file,
)


def build_subject(method: str | type[BaseMethod] | BaseMethod, folder: Path, **settings: Any) -> Subject:
    """Return a method under test, with its settings and the task of the checks."""
    name, own = describe_method(method)
    resolved = config.resolve(name, {**own, "rounds": TASK.rounds, **settings})
    built: Method = config.build_method(resolved, TASK)
    return Subject(built, folder)


def check_method(method: str | type[BaseMethod] | BaseMethod, **settings: Any) -> None:
    """Run all conformance checks on a method, with three clients that have 24 digits of 8x8 pixels each.

    Args:
        method: A registered name, a class that derives from `vitrail.BaseMethod`, or an object of one.
        **settings: Settings that make it small enough to train in seconds.

    Raises:
        AssertionError: With the first check that failed, and what was expected.
    """
    with tempfile.TemporaryDirectory() as folder:
        subject = build_subject(method, Path(folder), **settings)
        for check in CHECKS:
            try:
                check(subject)
            except AssertionError as e:
                raise AssertionError(f"{check.__name__}: {e}") from e
