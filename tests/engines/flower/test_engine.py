"""The Flower engine over a Grid in memory: late, returning and refused nodes. They run the real ClientApp."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from tests.engines.flower.descriptions import NASTY
from tests.federation import quick
from vitrail.engines.client import Client
from vitrail.engines.flower.client import client_app
from vitrail.engines.flower.descriptions import Description, RunSpec
from vitrail.engines.flower.engine import FlowerEngine
from vitrail.engines.flower.messages import pack
from vitrail.engines.flower.roster import Roster
from vitrail.engines.replies import Failure
from vitrail.engines.rounds import RoundResult
from vitrail.utils.errors import VitrailError

METHOD = quick("fedavg")
SPEC = RunSpec({"method": "fedavg"}, "00" * 16, (1, 8, 8), tuple("0123456789"), 3)


@dataclass
class Echo:
    """A node that returns each request with its name."""

    name: str
    key: str = "0" * 64
    shape: tuple[int, ...] = SPEC.shape
    classes: tuple[str, ...] = SPEC.classes
    stored: list[bytes] = field(default_factory=list)

    def verify(self, spec: str, signed: bytes, purpose: str) -> bytes:
        return signed

    def sign(self, request: bytes, reply: bytes, purpose: str) -> bytes:
        return reply

    def describe(self, spec: RunSpec) -> Description:
        return Description(self.name, self.key, self.shape, self.classes)

    def client(self, spec: RunSpec) -> Client:
        return self  # type: ignore[return-value]

    def answer(self, request: bytes) -> bytes:
        return f"{self.name}:".encode() + request

    def keep(self, spec: RunSpec, model: bytes) -> None:
        self.stored.append(model)


class InMemory(Grid):
    """Nodes by id; a node in `silent` gets messages and replies only after `speak`."""

    def __init__(self, nodes: dict[int, Echo]) -> None:
        self.nodes, self.silent = nodes, set[int]()
        self.spoils: dict[int, Callable[[Message], Message]] = {}
        self.pushed: list[tuple[int, str]] = []
        self.ready: dict[str, Message] = {}
        self.delayed: list[tuple[int, Message]] = []

    def set_run(self, run: object) -> None: ...
    @property
    def run(self) -> None: ...
    def create_message(self, *args: object, **kwargs: object) -> Message: ...
    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]: ...

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            node, name = message.metadata.dst_node_id, f"m{len(self.pushed)}"
            message.metadata.__dict__["_message_id"] = name
            self.pushed.append((node, message.metadata.message_type))
            ids.append(name)
            if node in self.silent and message.metadata.message_type == "train":
                self.delayed.append((node, message))
            else:
                self.say(node, message)
        return ids

    def say(self, node: int, message: Message) -> None:
        client = self.nodes[node]
        context = Context(1, node, {"name": client.name}, RecordDict(), {})
        reply = client_app(lambda _: client)(message=message, context=context)
        spoil = self.spoils.get(node) if message.metadata.message_type == "train" else None
        self.ready[message.metadata.message_id] = spoil(message) if spoil else reply

    def speak(self, node: int) -> None:
        """Let a node send its delayed replies."""
        self.silent.discard(node)
        for of, message in self.delayed:
            if of == node:
                self.say(node, message)
        self.delayed = [(of, m) for of, m in self.delayed if of != node]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.ready.pop(m) for m in list(message_ids) if m in self.ready]


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.engines.flower.roster.INTERVAL", 0.02)
    monkeypatch.setattr("vitrail.engines.flower.engine._RETRY_DELAYS", (0.02, 0.04))
    for name in ("run_id", "node_id", "task_id"):  # Flower creates messages only within a task
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)


def three(timeout: float = 0.4) -> tuple[InMemory, Roster, FlowerEngine]:
    grid = InMemory({n: Echo(name) for n, name in ((7, "a"), (8, "b"), (9, "c"))})
    roster = Roster(grid, SPEC, timeout)
    return grid, roster, FlowerEngine(grid, roster, METHOD)


def test_every_client_gets_its_request_and_replies():
    _, _, engine = three()
    assert dict(engine.ask((c, b"x") for c in "abc")) == {c: f"{c}:x".encode() for c in "abc"}


def test_a_client_that_times_out_fails_and_its_late_reply_is_ignored():
    grid, _, engine = three()
    grid.silent = {8}
    answers = dict(engine.ask((c, b"1") for c in "abc"))
    assert answers["b"] == Failure("did not reply within 0.4 s")
    assert (answers["a"], answers["c"]) == (b"a:1", b"c:1")
    grid.speak(8)  # a late reply to request 1
    assert dict(engine.ask((c, b"2") for c in "abc")) == {c: f"{c}:2".encode() for c in "abc"}


def test_a_request_is_repeated_after_an_error_of_flower_and_counted():
    grid, _, engine = three()
    failing = [_error, lambda m: Message(Error(8, "ClientApp stopped responding."), reply_to=m)]
    grid.spoils[8] = lambda m: failing.pop(0)(m) if failing else Message(pack("", b"b:at last"), reply_to=m)
    assert dict(engine.ask([("b", b"12345")])) == {"b": b"b:at last"}
    assert grid.pushed.count((8, "train")) == 3
    first, second = RoundResult(0, down=Counter(b=5)), RoundResult(1)
    engine.count(first)
    engine.count(second)
    assert (first.down, second.down) == ({"b": 15}, {})


def test_none_waits_for_a_reply_before_the_next_request():
    _, _, engine = three()
    taken: list[str] = []

    def requests():
        yield "a", b"1"
        yield None
        taken.append("after None")
        yield "b", b"1"

    answers = engine.ask(requests())
    assert next(answers) == ("a", b"a:1")
    assert not taken
    assert next(answers) == ("b", b"b:1")


def test_no_more_than_max_pending_requests_are_in_progress():
    grid, roster, _ = three()
    engine = FlowerEngine(grid, roster, METHOD, max_pending=1)
    grid.silent = {7, 8, 9}
    answers = engine.ask((c, b"1") for c in "abc")
    assert next(answers)[0] == "a"
    assert [node for node, kind in grid.pushed if kind == "train"] == [7]


def test_a_node_that_returns_under_another_id_gets_the_request_there():
    grid, _, engine = three(5.0)
    grid.silent = {8}
    answers = engine.ask((c, b"1") for c in "abc")
    assert {next(answers)[0], next(answers)[0]} == {"a", "c"}
    grid.nodes[12] = Echo("b")  # the same key: it was restarted; the old id is still listed
    assert next(answers) == ("b", b"b:1")


def test_a_second_node_with_the_same_name_is_refused_until_the_first_leaves():
    grid, roster, engine = three()
    dict(engine.ask([("b", b"1")]))
    grid.nodes[12] = Echo("b", key="1" * 64)
    roster.wait(["b"], 0.2)
    roster.updated = 0.0
    roster.update()
    assert roster.problems() == ["b: another node already has this name"]
    assert roster.node("b") == 8
    del grid.nodes[8]
    roster.updated = 0.0
    roster.update()
    assert roster.node("b") == 12


def test_a_node_with_other_images_or_labels_is_refused_by_name():
    grid, roster, engine = three()
    grid.nodes[8].shape = (3, 8, 8)
    grid.nodes[9].classes = ("cat", "dog")
    answers = dict(engine.ask((c, b"1") for c in "abc"))
    assert answers["a"] == b"a:1"
    assert isinstance(answers["b"], Failure)
    assert roster.problems() == [
        "b: its images are 3 x 8 x 8, those of the run 1 x 8 x 8",
        f"c: its labels are cat, dog; those of the run {', '.join('0123456789')}",
    ]


def test_gather_uses_the_most_common_format_and_reports_missing_nodes():
    grid, _, _ = three()
    grid.nodes[8].shape = (3, 8, 8)
    roster = Roster(grid, RunSpec({"method": "fedavg"}), 0.3)
    assert roster.gather(2) == ["a", "c"]
    assert roster.spec.shape == (1, 8, 8)
    with pytest.raises(
        VitrailError, match=r"2 of 3 nodes take part .*\(a, c\); 1 is .* refused: b: its images are 3 x 8 x 8"
    ):
        Roster(grid, RunSpec({"method": "fedavg"}), 0.3).gather(3)


def test_gather_does_not_ask_to_start_nodes_that_are_connected_and_refuse():
    grid, _, _ = three()
    for node in grid.nodes:
        grid.nodes[node] = Odd(json.dumps({"name": f"n{node}", "refuses": "refused by the node's policy"}))
    with pytest.raises(VitrailError, match=r"^0 of 2 .* \(none\); 3 are connected and refused: n7: refused") as e:
        Roster(grid, RunSpec({"method": "fedavg"}), 0.3).gather(2)
    assert "start" not in str(e.value)
    assert "clients=" not in str(e.value)


class Odd(Echo):
    """A node that sends any text as its description."""

    def describe(self, spec: RunSpec) -> Description:
        return SimpleNamespace(text=lambda: self.name)  # type: ignore[return-value]


@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY)
def test_a_malformed_description_of_one_node_does_not_affect_others(text):
    grid, _, _ = three()
    grid.nodes[8] = Odd(text)
    roster = Roster(grid, RunSpec({"method": "fedavg"}), 5.0)
    assert roster.gather(2) == ["a", "c"]
    (problem,) = roster.problems()
    assert problem.isprintable()
    assert len(problem) <= 500
    assert dict(FlowerEngine(grid, roster, METHOD).ask((c, b"1") for c in "ac")) == {c: f"{c}:1".encode() for c in "ac"}


def test_an_unexpected_error_in_a_description_excludes_only_its_node(monkeypatch):
    real = Description.read

    def fails(text: str) -> Description:
        if '"b"' in text:
            raise MemoryError
        return real(text)

    monkeypatch.setattr(Description, "read", staticmethod(fails))
    grid, _, _ = three()
    roster = Roster(grid, RunSpec({"method": "fedavg"}), 5.0)
    assert roster.gather(2) == ["a", "c"]
    assert roster.problems() == ["MemoryError"]


def _too_large(message: Message) -> Message:
    return Message(pack("", bytes(2**26)), reply_to=message)


def _no_bytes(message: Message) -> Message:
    return Message(RecordDict({"x": ConfigRecord({"y": 1})}), reply_to=message)


def _floats(message: Message) -> Message:
    array = Array("float32", (1,), "numpy.ndarray", b"1234")
    content = RecordDict({"bytes": ArrayRecord({"vitrail": array}), "text": ConfigRecord({"vitrail": ""})})
    return Message(content, reply_to=message)


def _error(message: Message) -> Message:
    return Message(Error(2, "it\nbroke\x1b[31m " + "x" * 500), reply_to=message)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (_too_large, "reply refused: a message of 67,108,864 bytes; at most"),
        (_no_bytes, "reply refused: the message does not have one array"),
        (_floats, "reply refused: the message does not have one array"),
        (_error, "its node failed: it broke�[31m xxx"),
    ],
)
def test_a_message_that_is_not_a_reply_is_a_failure_with_a_printable_reason(spoil, expected):
    grid, _, engine = three()
    grid.spoils[8] = spoil
    answers = dict(engine.ask((c, b"1") for c in "abc"))
    assert isinstance(answers["b"], Failure)
    assert answers["b"].reason.startswith(expected)
    assert len(answers["b"].reason) < 300
    assert answers["b"].reason.isprintable()
    assert answers["c"] == b"c:1"
