"""The conformance checks that every method must pass: reproducibility, declared parts, refused messages, stored models.

Each check is a function of a `Subject` and raises AssertionError with what was expected.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from vitrail.data.dataset import Images
from vitrail.engines.client import Client
from vitrail.engines.replies import Failure, read_reply
from vitrail.engines.rounds import Federation, RoundResult
from vitrail.experiment import settings as config
from vitrail.experiment.plugins import describe_method
from vitrail.methods.base import BaseMethod, Broadcast, Model, PartSpec, Task
from vitrail.methods.private import PrivateMethod
from vitrail.models.model_file import load, load_classifier, open_classifier, open_model, save_model
from vitrail.privacy.noise import seeded
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

    def folder(self) -> Path:
        """Return a new folder."""
        return Path(tempfile.mkdtemp(dir=self.root))

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
        return models.get("generator") or models["classifier"]

    def check_same(self, message: str, folder: Path | None = None, **how: Any) -> list[RoundResult]:
        """Expect that another federation ends in the state of the undisturbed one; return its results."""
        fed, outcomes, _ = federate(self.method, folder or self.folder(), **how)
        _expect(same(fed.tree(), self.reference[0].tree()), message)
        return outcomes

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


def check_types(subject: Subject) -> None:
    """Functions return what their annotations declare."""
    method, rng = subject.method, Rng((SEED,)).child("server", "init")
    spec = method.reply_spec()
    _expect(all(isinstance(p, PartSpec) for p in spec.values()), "reply_spec must return PartSpec objects by name")
    server = method.server_init(rng)
    _expect(isinstance(server, dict), f"server_init must return a dict, not {type(server).__name__}")
    models = method.export_models(server)
    _expect(
        isinstance(models, Mapping) and bool({"generator", "classifier"} & set(models)),
        f"export_models must return a dict with a 'generator' or a 'classifier', not {models!r:.60}",
    )
    _expect(all(isinstance(m, Model) for m in models.values()), "export_models must return vitrail.Model objects")
    server, clients = method.start_round(server, sorted(shares()), rng)
    for client in clients:
        sent = method.broadcast(server, client, True)
        _expect(isinstance(sent, Broadcast), f"broadcast must return a vitrail.Broadcast, not {type(sent).__name__}")


def check_reproducible(subject: Subject) -> None:
    """The same seed gives the same bits."""
    subject.check_same("two runs of one seed differ: all randomness must come from `rng`, not np.random or torch's")


def check_unchanged_arguments(subject: Subject) -> None:
    """No call changes its arguments in place, so a discarded round or a refused reply leaves no trace."""
    method, changed = type(subject.method), set()

    def watched(name: str) -> Any:
        honest = getattr(method, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            before = pickle.dumps((args, kwargs))
            found = honest(self, *args, **kwargs)
            if pickle.dumps((args, kwargs)) != before:
                changed.add(name)
            return found

        return patch.object(method, name, call)

    with ExitStack() as stack:
        for name in ("start_round", "broadcast", "client_round", "receive", "finish_round"):
            stack.enter_context(watched(name))
        federate(subject.method, subject.folder())
    _expect(not changed, f"{', '.join(sorted(changed))} changed an argument in place; return a new state instead")


def check_noise(subject: Subject) -> None:
    """Noise is drawn from `source`, and noised vectors that leave a client have the declared σ.

    σ is measured where one reply is one release, of floats. What is computed from a release cannot be measured, and
    no check proves a sensitivity.
    """
    mechanism, method = subject.method.mechanism, type(subject.method)
    if mechanism is None:
        return
    _expect(
        isinstance(subject.method, PrivateMethod),
        "a method with a mechanism must derive from PrivateMethod and use its source()",
    )

    def with_noise(k: int, draw: Callable[[], Any]) -> Any:
        with patch.object(method, "source", lambda _, rng: seeded(rng.child("other noise", k))):
            return draw()

    if mechanism.noised_by == "server":
        after = [with_noise(k, lambda: federate(subject.method, subject.folder(), rounds=1)[0]) for k in range(2)]
        _expect(
            not same(after[0].tree(), after[1].tree()),
            "the server's state does not change with source(): no noise is added",
        )
        return
    request, spec = subject.reference[2].requests[0][1], subject.method.reply_spec()
    replies = [with_noise(k, lambda: decode(subject.client(subject.folder()).answer(request))) for k in range(8)]
    _expect(replies[0].parts != replies[1].parts, "the reply does not change with source(): no noise is added")
    noise = mechanism.own_noise().noise
    if (noise.steps, noise.rate, noise.discrete, mechanism.once, mechanism.public) != (1, 1.0, False, False, ""):
        return
    for name in (name for name, p in spec.items() if p.codec.startswith("float") and p.unpack is None):
        values = np.array([part.array().astype(float) for r in replies for part in r.parts if part.name == name])
        spread, sigma = values.std(0, ddof=1), mechanism.own_noise().sigma
        found = float(np.sqrt((spread**2).mean()))
        _expect(
            found > 0.7 * sigma and float(spread.min()) > 0.03 * sigma,
            f"{name} has noise of {found:.3g} (at least {spread.min():.3g} per element), but the mechanism declares "
            f"σ = {sigma:.3g} for what leaves the client",
        )


def check_workers(subject: Subject) -> None:
    """Any number of worker processes gives the same bits."""
    if is_importable(type(subject.method)):
        subject.check_same("two workers give another result than one", workers=2)


def check_order(subject: Subject) -> None:
    """Any order of clients gives the same bits."""
    subject.check_same("the result depends on the order of clients", reverse=True)


def check_async(subject: Subject) -> None:
    """Asynchronous rounds give the same bits as rounds with a barrier."""
    for workers in (1, 2) if subject.method.num_async_rounds else ():
        outcomes = subject.check_same("asynchronous rounds give another result", ahead=3, workers=workers)
        _expect([asdict(o) for o in outcomes] == [asdict(o) for o in subject.reference[1]], "round results differ")


def check_resume(subject: Subject) -> None:
    """A run that is saved and resumed gives the bits of an uninterrupted one."""
    folder = subject.folder()
    half, *_ = federate(subject.method, folder / "clients", rounds=1)
    save_state(folder / "checkpoint", half.tree())
    loaded = Federation.from_tree(load_state(folder / "checkpoint"))
    subject.check_same("a resumed run gives another result", folder / "clients", rounds=2, fed=loaded)


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

    with patch.object(method, "client_round", leaky):
        answer = decode(client.answer(subject.reference[2].requests[0][1]))
    _expect(answer.header.kind is Kind.FAILED, "an undeclared part was sent")
    _expect("pixels" in bytes(answer.parts[0].array()).decode(), "the refusal does not name the part")


def check_repeated_request(subject: Subject) -> None:
    """A repeated request returns the stored reply."""
    client = subject.client(subject.folder())
    request = subject.reference[2].requests[0][1]
    first = client.answer(request)
    with patch.object(type(subject.method), "client_round", None):
        _expect(client.answer(request) == first, "a repeated request was computed again")
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
    message = decode(reply)
    t, first = message.header.round, message.parts[0]
    fed, *_ = federate(subject.method, subject.folder(), rounds=t)  # the server when the last replies came

    def refused(data: bytes, run: bytes = RUN, round_: int = t, name: str = client) -> bool:
        return isinstance(read_reply(data, run, round_, name, declared, fed.server), Failure)

    longer = make_part(first.name, first.codec, np.append(first.array(), 0))
    extra = make_part("extra", "float32", np.zeros(1))
    changed = message.parts[1:], (*message.parts[1:], longer), (*message.parts, extra)
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
    for few in (np.arange(1), np.flatnonzero(digits().train.labels == 3)[:20]):
        fed, outcomes, _ = federate(subject.method, subject.folder(), indices={**shares(), "client-0": few})
        for o in _with_clients(outcomes):
            _expect(o.replied == sorted(shares()), f"a client with {len(few)} images is excluded: {o.excluded}")
        subject.check_output(fed)


def check_empty_client(subject: Subject) -> None:
    """A client without images is excluded with this reason, and the round continues."""
    fed, outcomes, _ = federate(subject.method, subject.folder(), indices={**shares(), "client-0": np.arange(0)})
    for o in _with_clients(outcomes):
        reason = o.excluded.get("client-0", "")
        _expect("no images" in reason, f"a client without images: {reason!r}")
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
    fed = subject.reference[0]
    model, path = subject.model(fed.server), subject.folder() / "m.safetensors"
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


CHECKS: tuple[Callable[[Subject], None], ...] = tuple(f for name, f in globals().items() if name.startswith("check_"))


def check_method(method: str | type[BaseMethod] | BaseMethod, **settings: Any) -> None:
    """Run all conformance checks on a method, with three clients that have 24 digits of 8x8 pixels each.

    Args:
        method: A registered name, a class that derives from `vitrail.BaseMethod`, or an object of one.
        **settings: Settings that make it small enough to train in seconds.

    Raises:
        AssertionError: With the first check that failed, and what was expected.

    Examples:
        In the tests of your own method, with its class in place of the name:

        >>> from vitrail.testing import check_method
        >>> def test_my_method():
        ...     check_method("fedavg", local_steps=1)
    """
    name, own = describe_method(method)
    built = config.build_method(config.resolve(name, {**own, "rounds": TASK.rounds, **settings}), TASK)
    with tempfile.TemporaryDirectory() as folder:
        subject = Subject(built, Path(folder))
        for check in CHECKS:
            try:
                check(subject)
            except Exception as e:
                reason = e if isinstance(e, AssertionError) else f"{type(e).__name__}: {e}"
                raise AssertionError(f"{check.__name__}: {reason}") from e
