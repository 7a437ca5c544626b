"""Rounds without a barrier: no client waits, and no bit changes."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from tests.engines.toy import Free, Toy
from tests.federation import RUN, digits, federate, quick, same, shares
from vitrail.engines import async_rounds
from vitrail.engines.async_rounds import AsyncRounds
from vitrail.engines.federation import Federation, select_clients
from vitrail.engines.journal import Journal
from vitrail.engines.replies import Failure
from vitrail.engines.simulation import SimulatedClients, SimulationEngine
from vitrail.methods import METHODS
from vitrail.utils.rng import Rng
from vitrail.wire.message import Kind, decode, encode

NAMES = sorted(shares())


class Killed(Exception):
    pass


class Order:
    """Carries requests to clients in an order drawn by a seed, and may be killed at the n-th reply."""

    def __init__(self, method, folder, seed=0, killed=-1):
        self.engine = SimulationEngine(SimulatedClients(method, RUN, Rng((5,)), shares(), folder), digits().train)
        self.draw, self.killed, self.rounds, self.replies = np.random.default_rng(seed), killed, [], []

    def ask(self, requests):
        todo, waiting = iter(requests), []
        while True:
            for request in todo:
                if request is None:
                    break
                waiting.append(request)
            if not waiting:
                return
            ((client, answer),) = self.engine.ask([waiting.pop(self.draw.integers(len(waiting)))])
            if len(self.rounds) == self.killed:
                raise Killed
            self.rounds.append((client, decode(answer).header.round))
            yield client, answer


def free(method, folder, carry, until=5, chosen=lambda _: NAMES, **how):
    """Run to the first checkpoint; return the federation and all results."""
    fed = Federation(0, method.server_init(Rng((5,)).child("server", "init")))
    outcomes = []
    rounds = AsyncRounds(method, fed, RUN, chosen, until, carry.ask, Rng((5,)), Journal(folder / "answers"), **how)
    for outcome, after in rounds:
        assert fed.round == 0  # only the last can be saved
        outcomes.append(outcome)
        fed = after or fed
    return fed, outcomes


def equal(a, b):
    """Whether two federations and their results are equal."""
    return same(a[0].tree(), b[0].tree()) and [asdict(o) for o in a[1]] == [asdict(o) for o in b[1]]


@pytest.fixture
def barrier(tmp_path):
    return federate(Free(), tmp_path / "barrier", rounds=5)


def test_a_slow_client_delays_no_other_client(tmp_path):
    """client-0 replies to its first round only after client-1 has replied to its third."""
    gate, received = tmp_path / "gate", []
    method = Free(gate=str(gate))

    def spoil(t, client, data):
        received.append((client, t))
        if (client, t) == ("client-1", 2):
            gate.touch()
        return data

    fed, outcomes, _ = federate(method, tmp_path / "a", ahead=5, workers=2, spoil=spoil)
    assert received.index(("client-1", 2)) < received.index(("client-0", 0))
    assert [o.round for o in outcomes] == list(range(6))
    assert all(len(o.replied) == 3 for o in outcomes[:5])
    assert same(fed.tree(), federate(Free(), tmp_path / "b")[0].tree())


@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_replies_gives_the_bits_of_a_barrier(seed, barrier, tmp_path):
    carry = Order(Free(), tmp_path, seed)
    assert equal(free(Free(), tmp_path, carry), barrier)
    assert sorted(carry.rounds) == [(c, t) for c in NAMES for t in range(5)]
    assert [t for _, t in carry.rounds] != sorted(t for _, t in carry.rounds)  # rounds overlap


def test_any_number_of_rounds_between_checkpoints_gives_the_same_bits(tmp_path):
    plain = federate(Free(), tmp_path / "1")
    for ahead in (2, 3, 6):
        some = federate(Free(), tmp_path / str(ahead), ahead=ahead)
        assert equal(some, plain)
        assert some[0].server["alone"] == 1  # the last round has no clients
        assert not (tmp_path / str(ahead) / "answers").exists()


@pytest.mark.parametrize("n", range(15))
def test_a_server_killed_at_any_reply_resumes_to_the_same_bits(n, barrier, tmp_path, monkeypatch):
    trained = []
    real = Free.client_round
    monkeypatch.setattr(
        Free, "client_round", lambda self, s, m, *a: trained.append((s["name"], m.round)) or real(self, s, m, *a)
    )
    with pytest.raises(Killed):
        free(Free(), tmp_path, Order(Free(), tmp_path, seed=n, killed=n))
    with pytest.raises(Killed):
        free(Free(), tmp_path, Order(Free(), tmp_path, seed=n + 99, killed=(14 - n) // 2))  # killed a second time
    assert equal(free(Free(), tmp_path, Order(Free(), tmp_path, seed=n + 50)), barrier)
    assert sorted(trained) == [(c, t) for c in NAMES for t in range(5)]


def test_a_failed_client_is_excluded_from_that_round_only(tmp_path):
    method = Free(fails=("client-1", (1, 2)))
    plain = federate(method, tmp_path / "a", rounds=5)
    some = free(method, tmp_path / "b", Order(method, tmp_path / "b", seed=3))
    assert equal(some, plain)
    assert [o.excluded for o in some[1]] == [{}, *[{"client-1": "no luck today"}] * 2, {}, {}]
    assert [len(some[0].server["chains"][c]) for c in NAMES] == [5, 3, 5]


def test_a_failure_is_restored_after_the_server_was_killed(tmp_path):
    method = Free(fails=("client-1", (0, 1)))
    with pytest.raises(Killed):
        free(method, tmp_path / "b", Order(method, tmp_path / "b", seed=3, killed=12))
    plain = federate(method, tmp_path / "a", rounds=5)
    assert equal(free(method, tmp_path / "b", Order(method, tmp_path / "b")), plain)


def test_a_client_that_the_method_refuses_is_excluded_in_every_round(tmp_path):
    method = Free(fails=("client-2", ()))
    some = free(method, tmp_path / "b", Order(method, tmp_path / "b"))
    assert equal(some, federate(method, tmp_path / "a", rounds=5))
    assert all(o.excluded == {"client-2": "reply refused: it is refused"} for o in some[1])
    assert set(some[0].server["chains"]) == {"client-0", "client-1"}


class Surprised(Free):
    """A server that fails unexpectedly on replies of client-2."""

    def receive(self, server, client, parts):
        if client == "client-2":
            raise KeyError("a surprise")
        return super().receive(server, client, parts)


@pytest.mark.parametrize("killed", [-1, 2, 7, 12])
def test_a_reply_that_raises_excludes_its_client_also_from_the_journal(killed, tmp_path):
    method = Surprised()
    if killed >= 0:
        with pytest.raises(Killed):
            free(method, tmp_path, Order(method, tmp_path, seed=1, killed=killed))
    some = free(method, tmp_path, Order(method, tmp_path, seed=2))
    absent = federate(Free(), tmp_path / "a", rounds=5, spoil=lambda _, c, d: Failure("") if c == "client-2" else d)
    assert all(o.excluded == {"client-2": "reply refused: KeyError"} for o in some[1])
    assert same(some[0].tree(), absent[0].tree())


@pytest.mark.parametrize("name", [name for name in METHODS if quick(name).num_async_rounds])
def test_in_async_rounds_a_reply_of_another_shape_excludes_its_client(name, tmp_path):
    def reshaped(_, client, data):
        message = decode(data)
        part = message.parts[0]
        bad = (replace(part, shape=(1, *part.shape)), *message.parts[1:])
        return encode(replace(message, parts=bad)) if client == "client-1" else data

    fed, outcomes, _ = federate(quick(name), tmp_path / "a", ahead=3, spoil=reshaped)
    absent = federate(quick(name), tmp_path / "b", spoil=lambda _, c, d: Failure("") if c == "client-1" else d)
    assert all("declared is" in o.excluded["client-1"] for o in outcomes if o.requested)
    assert same(fed.tree(), absent[0].tree())


def test_a_failure_with_any_text_is_restored_from_the_journal(tmp_path):
    journal = Journal(tmp_path)
    journal.write(tmp_path / "x", Failure("half \ud800"))
    assert journal.read(tmp_path / "x") == Failure("half ?")
    (tmp_path / "x").write_bytes(b"\0\xff")
    assert isinstance(journal.read(tmp_path / "x"), Failure)


def test_in_async_rounds_a_client_that_lost_its_state_continues(tmp_path):
    fed, *_ = federate(Free(), tmp_path, rounds=2)
    (tmp_path / "client-2.safetensors").unlink()
    after, outcomes, traffic = federate(Free(), tmp_path, rounds=3, fed=fed, ahead=3)
    kinds = [decode(r).header.kind for c, r in traffic.replies if c == "client-2"]
    assert kinds == [Kind.NEED_FULL, *[Kind.REPLY] * 3]
    assert after.round == 5
    assert all(len(o.replied) == 3 for o in outcomes)
    sent = sum(len(r) for c, r in traffic.replies if c == "client-2")
    assert sum(o.up["client-2"] for o in outcomes) == sent


@pytest.mark.parametrize("workers", [1, 2])
def test_dropouts_and_quorum_are_those_of_a_barrier(workers, tmp_path):
    how = {"dropout": 0.5, "quorum": 2}
    plain = federate(Free(), tmp_path / "a", **how)
    assert any(o.void for o in plain[1])
    assert equal(federate(Free(), tmp_path / "b", ahead=5, workers=workers, **how), plain)


def test_each_round_uses_its_own_sample_of_clients(tmp_path):
    rng = Rng((5,))
    chosen = lambda t: select_clients(NAMES, 1 + t % 2, rng.child("choose", t))  # noqa: E731
    runs = [free(Free(), tmp_path / str(i), Order(Free(), tmp_path / str(i), i), chosen=chosen) for i in range(3)]
    assert equal(runs[0], runs[1])
    assert equal(runs[0], runs[2])
    assert [o.replied for o in runs[0][1]] == [chosen(t) for t in range(5)]


def test_on_start_is_called_before_the_first_request_of_a_round(tmp_path):
    carry, known = Order(Free(), tmp_path, 4), []
    ask = carry.ask

    def checked(requests):
        def seen():
            for request in requests:
                assert request is None or (decode(request[1]).header.round, NAMES) in known
                yield request

        return ask(seen())

    carry.ask = checked
    free(Free(), tmp_path, carry, on_start=lambda t, participants: known.append((t, list(participants))))
    assert known == [(t, NAMES) for t in range(5)]


def test_a_full_journal_forces_an_early_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(async_rounds, "MAX_JOURNAL", 100)
    fed, outcomes = free(Free(), tmp_path / "a", Order(Free(), tmp_path / "a"))
    assert 1 <= fed.round == len(outcomes) < 5
    assert equal((fed, outcomes), federate(Free(), tmp_path / "b", rounds=fed.round))


def test_requests_are_encoded_lazily(tmp_path):
    """An engine that takes one request causes one to be encoded."""
    made = []

    class Counted(Free):
        def broadcast(self, server, client, full):
            made.append(client)
            return super().broadcast(server, client, full)

    def one_at_a_time(requests):
        for i, (client, _) in enumerate(filter(None, requests), 1):
            assert len(made) == i
            yield client, Failure("absent")

    carry = Order(Free(), tmp_path)
    carry.ask = one_at_a_time
    _, outcomes = free(Counted(), tmp_path, carry, quorum=0)
    assert all(set(o.excluded) == set(NAMES) for o in outcomes)


def test_secure_aggregation_and_relays_keep_the_barrier(tmp_path):
    class Related(Toy):
        num_async_rounds = 6

    assert [type(quick("psfedgan").num_async_rounds), quick("fedgan").num_async_rounds] == [int, 0]
    plain = federate(Toy(), tmp_path / "a")
    assert equal(federate(Related(), tmp_path / "b", ahead=6), plain)
    method = replace(quick("fedgan"), task=replace(quick("fedgan").task, secagg_threshold=2))
    fed, outcomes, _ = federate(method, tmp_path / "c", ahead=3)
    assert fed.round == 3
    assert not any(o.void for o in outcomes)


def test_the_journal_is_readable_by_its_owner_alone(tmp_path):
    with pytest.raises(Killed):
        free(Free(), tmp_path, Order(Free(), tmp_path, killed=4))
    stored = list((tmp_path / "answers").iterdir())
    assert len(stored) == 4
    assert all(p.stat().st_mode & 0o077 == 0 for p in [tmp_path / "answers", *stored])
