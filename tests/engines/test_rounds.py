"""One round with a barrier, on any engine."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from tests.engines.toy import Toy, _next
from tests.federation import federate, quick, same, shares
from vitrail.engines.federation import select_clients
from vitrail.engines.replies import CheckedPart, Failure
from vitrail.engines.sums import FixedPointSum
from vitrail.methods.base import Broadcast, PartSpec, fixed_point_scale
from vitrail.utils.errors import Malformed
from vitrail.utils.rng import Rng
from vitrail.utils.state import load
from vitrail.wire.bit_counts import BitCounts
from vitrail.wire.message import Kind, Message, decode, encode, make_part


def test_sums_each_parts_relays_and_server_only_rounds_work_together(tmp_path):
    fed, outcomes, _ = federate(Toy(), tmp_path)
    assert fed.server["total"] == 4 * 1.5  # rounds 0, 1, 3 and 4; 2 and 5 have no clients
    assert fed.server["alone"] == 2
    assert fed.server["seen"] == [0, 1, 2] * 4
    assert [o.requested for o in outcomes] == [3, 3, 0, 3, 3, 0]
    assert outcomes[0].metrics == {"images": 24.0}
    notes = load(tmp_path / "client-1.safetensors")["state"]["notes"]
    assert notes == [
        f"round {t} from client-0" for t in (0, 1, 3)
    ]  # the note of round 1 waits during a round without clients


@pytest.mark.parametrize("how", [{"reverse": True}, {"workers": 2}])
def test_each_parts_are_received_in_client_order_for_any_order_of_arrival(tmp_path, how):
    plain, *_ = federate(Toy(), tmp_path / "a")
    assert same(federate(Toy(), tmp_path / "b", **how)[0].tree(), plain.tree())


def test_the_server_passes_on_a_relayed_part_unchanged(tmp_path):
    _, _, traffic = federate(Toy(), tmp_path, rounds=2)
    request = next(decode(r) for c, r in traffic.requests[3:] if c == "client-1")
    note = next(p for p in request.parts if p.name == "note")
    assert note.peer == "client-0"
    assert bytes(note.array()) == b"round 0 from client-0"


def test_a_client_that_lost_its_state_is_sent_the_full_state(tmp_path):
    fed, *_ = federate(Toy(), tmp_path, rounds=1)
    (tmp_path / "client-2.safetensors").unlink()
    after, outcomes, traffic = federate(Toy(), tmp_path, rounds=1, fed=fed)
    kinds = [decode(r).header.kind for c, r in traffic.replies if c == "client-2"]
    assert kinds == [Kind.NEED_FULL, Kind.REPLY]
    assert after.server["total"] == 3.0
    assert after.server["seen"] == [0, 1, 2, 0, 1, 2]
    bytes_up = sum(len(r) for c, r in traffic.replies if c == "client-2")
    assert outcomes[0].up["client-2"] == bytes_up  # both replies are counted


def test_failed_clients_are_reported_with_reasons_in_order(tmp_path):
    gone = lambda _, c, d: Failure("the cable was cut") if c == "client-1" else d  # noqa: E731
    fed, outcomes, _ = federate(Toy(), tmp_path, rounds=1, spoil=gone, reverse=True)
    assert outcomes[0].excluded == {"client-1": "the cable was cut"}
    assert fed.server["seen"] == [0, 2]


class Strict(Toy):
    """Toy whose server refuses the reply of client-1."""

    def receive(self, server, client, parts):
        if client == "client-1":
            raise Malformed("it does not add up")
        return super().receive(server, client, parts)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_reply_that_the_method_refuses_changes_no_state(tmp_path, reverse):
    """No sums, metrics or relays of it remain, for any order of arrival."""
    gone = lambda _, c, d: Failure("reply refused: it does not add up") if c == "client-1" else d  # noqa: E731
    absent, expected, _ = federate(Toy(), tmp_path / "a", spoil=gone)
    fed, outcomes, _ = federate(Strict(), tmp_path / "b", reverse=reverse)
    assert same(fed.tree(), absent.tree())
    for o, e in zip(outcomes, expected, strict=True):
        assert (o.replied, o.excluded, o.metrics) == (e.replied, e.excluded, e.metrics)
    assert outcomes[0].excluded == {"client-1": "reply refused: it does not add up"}


class Fragile(Toy):
    """Toy whose server fails unexpectedly after it has read part of the reply of client-1."""

    error: ClassVar[type[BaseException]] = ValueError

    def receive(self, server, client, parts):
        if client == "client-1":
            raise self.error("a surprise")
        return super().receive(server, client, parts)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("error", [ValueError, KeyError, IndexError, MemoryError, RecursionError, AssertionError])
def test_any_exception_caused_by_a_reply_excludes_only_its_client(tmp_path, monkeypatch, error, reverse):
    gone = lambda _, c, d: Failure("gone") if c == "client-1" else d  # noqa: E731
    absent, expected, _ = federate(Toy(), tmp_path / "a", spoil=gone)
    monkeypatch.setattr(Fragile, "error", error)
    fed, outcomes, _ = federate(Fragile(), tmp_path / "b", reverse=reverse)
    assert same(fed.tree(), absent.tree())
    for o, e in zip(outcomes, expected, strict=True):
        assert (o.replied, o.metrics, o.floats_up) == (e.replied, e.metrics, e.floats_up)
    assert outcomes[0].excluded == {"client-1": f"reply refused: {error.__name__}"}  # its text may contain anything


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_keyboard_interrupt_while_a_reply_is_read_stops_the_run(tmp_path, monkeypatch, error):
    monkeypatch.setattr(Fragile, "error", error)
    with pytest.raises(error):
        federate(Fragile(), tmp_path, rounds=1)


@pytest.mark.parametrize("part", ["half", "metric.images"])
def test_a_reply_that_cannot_be_added_leaves_no_part_in_the_sums(tmp_path, monkeypatch, part):
    """For any of its parts."""
    gone = lambda _, c, d: Failure("gone") if c == "client-1" else d  # noqa: E731
    absent, (expected,), _ = federate(Toy(), tmp_path / "a", spoil=gone, rounds=1)
    real = FixedPointSum.add

    def add(self, reply):
        first = next(x for x in reply if x.part.name == "half").array
        full = lambda x: CheckedPart(x.part, Full(x.array.shape)) if x.part.name == part else x  # noqa: E731
        real(self, [full(x) for x in reply] if first[1] == 1 else reply)

    monkeypatch.setattr(FixedPointSum, "add", add)
    fed, (outcome,), _ = federate(Toy(), tmp_path / "b", rounds=1)
    assert outcome.excluded == {"client-1": "reply refused: MemoryError"}
    assert same(fed.tree(), absent.tree())
    assert (outcome.replied, outcome.metrics) == (expected.replied, expected.metrics)


class Full(np.ndarray):
    """An array whose multiplication raises MemoryError."""

    def __array_ufunc__(self, *_, **__):
        raise MemoryError


@pytest.mark.parametrize("n", range(8))
def test_bits_of_a_reply_are_counted_completely_or_not_at_all(monkeypatch, n):
    """MemoryError may occur at any step of an addition."""
    masks = np.random.default_rng(0).integers(0, 2, (8, 100), np.uint8)
    counts = BitCounts(100)
    for mask in masks[:n]:
        counts.add(np.packbits(mask))
    added = n + 1
    with monkeypatch.context() as patch:
        patch.setattr(np, "zeros_like", _no_memory)  # needed where the largest count takes one bit more
        try:
            counts.add(np.packbits(masks[n]))
        except MemoryError:
            added = n
    assert counts.totals().tolist() == masks[:added].sum(0).tolist()


def _no_memory(*_):
    raise MemoryError


@pytest.mark.parametrize("error", [ZeroDivisionError, MemoryError, Malformed])
def test_a_round_that_the_method_cannot_finish_is_void(tmp_path, monkeypatch, error):
    def fails(self, server, sums, rng):
        raise error("sums of nothing")

    monkeypatch.setattr(Toy, "finish_round", fails)
    fed, outcomes, _ = federate(Toy(), tmp_path, rounds=2)
    returned = "sums of nothing" if error is Malformed else error.__name__
    assert [o.void for o in outcomes] == [f"the method could not finish the round: {returned}"] * 2
    assert fed.round == 2
    assert fed.server["total"] == 0.0


def test_below_the_quorum_the_model_does_not_change(tmp_path):
    gone = lambda _, c, d: Failure("gone") if c != "client-0" else d  # noqa: E731
    method = quick("fedgan")
    fed, outcomes, _ = federate(method, tmp_path, rounds=1, spoil=gone, quorum=2)
    assert outcomes[0].void
    assert same(fed.server, method.server_init(Rng((5,)).child("server", "init")))


LIES = {
    "another sender": lambda m: replace(m, header=replace(m.header, sender="client-0")),
    "another run": lambda m: replace(m, header=replace(m.header, run=b"x" * 16)),
    "an older round": lambda m: replace(m, header=replace(m.header, round=7)),
    "another exchange": lambda m: replace(m, header=replace(m.header, exchange=9)),
    "a request": lambda m: replace(m, header=replace(m.header, kind=Kind.REQUEST)),
    "a wrong size": lambda m: replace(m, parts=(make_part("half", "float32", np.zeros(3)), *m.parts[1:])),
    "another shape": lambda m: replace(m, parts=(replace(m.parts[0], shape=(2, 1)), *m.parts[1:])),
    "a number without a shape": lambda m: replace(m, parts=(*m.parts[:1], replace(m.parts[1], shape=()), *m.parts[2:])),
    "a wrong codec": lambda m: replace(m, parts=(make_part("half", "float16", np.zeros(2)), *m.parts[1:])),
    "too large a number": lambda m: replace(
        m, parts=(make_part("half", "float32", np.array([1001.0, 0])), *m.parts[1:])
    ),
    "an undeclared part": lambda m: replace(m, parts=(*m.parts, make_part("gift", "bytes", np.zeros(1)))),
    "a sum for another client": lambda m: replace(m, parts=(replace(m.parts[0], peer="client-2"), *m.parts[1:])),
    "too little": lambda m: replace(m, parts=m.parts[:1]),
    "always asking for more": lambda m: Message(replace(m.header, kind=Kind.NEED_FULL)),
    "failing without a reason": lambda m: Message(replace(m.header, kind=Kind.FAILED)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_client_is_excluded_and_changes_nothing(tmp_path, lie):
    spoil = lambda _, c, d: encode(LIES[lie](decode(d))) if c == "client-1" else d  # noqa: E731
    fed, outcomes, _ = federate(Toy(), tmp_path / "a", rounds=1, spoil=spoil)
    assert set(outcomes[0].excluded) == {"client-1"}
    honest = federate(Toy(), tmp_path / "b", rounds=1, spoil=lambda _, c, d: Failure("") if c == "client-1" else d)[0]
    assert same(fed.tree(), honest.tree())


def test_a_client_that_sends_garbage_is_excluded(tmp_path):
    spoil = lambda _, c, d: np.random.default_rng(1).bytes(500) if c == "client-1" else d  # noqa: E731
    _, outcomes, _ = federate(Toy(), tmp_path, rounds=1, spoil=spoil)
    assert "checksum" in outcomes[0].excluded["client-1"]


def test_an_array_for_many_clients_is_encoded_once(tmp_path, monkeypatch):
    from vitrail.engines import requests as post

    encoded = []
    real = post.make_part
    monkeypatch.setattr(post, "make_part", lambda *a: encoded.append(a[0]) or real(*a))
    federate(quick("fedgan"), tmp_path, rounds=1, indices=shares(clients=3))
    assert sorted(encoded) == ["discriminator", "generator"]


def test_sums_do_not_depend_on_their_order_and_match_exact_arithmetic():
    from fractions import Fraction

    values = np.random.default_rng(0).normal(size=(50, 20)).astype(np.float32)
    declared = {"x": PartSpec("sum", "float32", 20, limit=16.0)}
    totals = []
    for order in (range(50), reversed(range(50))):
        total = FixedPointSum(declared, clients=50)
        for i in order:
            total.add([CheckedPart(make_part("x", "float32", values[i]), values[i])])
        totals.append(total.sums(50).values["x"])
    assert totals[0].tobytes() == totals[1].tobytes()
    exact = [float(sum(Fraction(float(v)) for v in column)) for column in values.T]
    assert np.allclose(totals[0], exact, rtol=0, atol=50 / fixed_point_scale(16.0, 50))


def test_all_clients_at_the_limit_do_not_overflow():
    total = FixedPointSum({"x": PartSpec("sum", "float32", 1, limit=1000.0)}, clients=1000)
    value = np.float32([1000.0])
    for _ in range(1000):
        total.add([CheckedPart(make_part("x", "float32", value), value)])
    assert total.sums(1000).values["x"][0] == 1e6


def test_a_sample_of_clients_is_drawn_without_repeats_and_by_the_seed():
    names = [f"c{i}" for i in range(20)]
    drawn = select_clients(names, 5, Rng((1,)).child(3))
    assert len(set(drawn)) == 5
    assert drawn == select_clients(names, 5, Rng((1,)).child(3))
    assert len({tuple(select_clients(names, 5, Rng((1,)).child(t))) for t in range(10)}) > 1
    assert select_clients(names, 50, Rng((1,))) == names


def test_dropouts_are_the_same_for_any_number_of_workers(tmp_path):
    a = federate(Toy(), tmp_path / "a", dropout=0.5)
    b = federate(Toy(), tmp_path / "b", dropout=0.5, workers=2)
    assert [o.excluded for o in a[1]] == [o.excluded for o in b[1]]
    assert any(o.excluded for o in a[1])
    assert same(a[0].tree(), b[0].tree())


class Quiet(Toy):
    """Toy with the same broadcast for all clients; each client writes to the next."""

    def broadcast(self, server, client, full):
        return Broadcast({"total": ("float32", np.float32([server["total"]])), "next": ("bytes", np.zeros(1))})

    def client_round(self, state, message, data, rng):
        to = _next(state["name"])
        return super().client_round(state, replace(message, parts={**message.parts, "next": to}), data, rng)


def test_a_relay_reaches_its_own_recipient_also_when_broadcasts_are_equal(tmp_path):
    federate(Quiet(), tmp_path, rounds=2)
    for k in range(3):
        notes = load(tmp_path / f"client-{k}.safetensors")["state"]["notes"]
        assert notes == [f"round 0 from client-{(k - 1) % 3}"]


def test_relays_to_unknown_clients_and_malformed_relays_are_dropped(tmp_path):
    def ghost(_, c, d):
        m = decode(d)
        return encode(replace(m, parts=tuple(replace(p, peer="unknown") if p.peer else p for p in m.parts)))

    def lie(_, c, d):
        m = decode(d)
        return encode(replace(m, parts=tuple(replace(p, payload=b"") if p.peer else p for p in m.parts)))

    assert federate(Toy(), tmp_path / "a", rounds=1, spoil=ghost)[0].relays == []
    fed, outcomes, _ = federate(Toy(), tmp_path / "b", rounds=1, spoil=lie)
    assert set(outcomes[0].excluded) == {"client-0", "client-1", "client-2"}
    assert fed.relays == []


@pytest.mark.parametrize("reason", [b"\x1b[2J\x07cleared", b"x" * 5_000_000])
def test_the_reason_of_a_failure_is_short_and_safe_to_print(tmp_path, reason):
    part = make_part("reason", "bytes", np.frombuffer(reason, np.uint8))
    spoil = lambda _, c, d: encode(Message(replace(decode(d).header, kind=Kind.FAILED), (part,)))  # noqa: E731
    _, outcomes, _ = federate(Toy(), tmp_path, rounds=1, spoil=spoil)
    returned = outcomes[0].excluded["client-0"]
    assert len(returned) <= 500
    assert returned.isprintable()


def test_a_round_with_a_result_that_is_not_finite_is_void(tmp_path, monkeypatch):
    monkeypatch.setattr(Toy, "finish_round", lambda self, server, sums, rng: {**server, "total": float("nan")})
    fed, outcomes, _ = federate(Toy(), tmp_path, rounds=1)
    assert "finite" in outcomes[0].void
    assert fed.server["total"] == 0.0
