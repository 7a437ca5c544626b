"""Secure aggregation from end to end: sums, dropouts, and resumed servers."""

import itertools

import numpy as np
import pytest

from tests.engines.secagg.adds import FIVE, Adds, adds_up, run_one_round, secure, total
from tests.federation import federate, quick, same, shares
from vitrail.methods.base import Task
from vitrail.utils.state import load
from vitrail.wire.message import Kind, decode


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    """Skip fsync, which only matters for a power failure."""
    monkeypatch.setattr("os.fsync", lambda fd: None)


# -- the sum ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["prism", "fedgan"])
def test_secure_aggregation_changes_no_bit_and_no_metric(name, tmp_path):
    plain, plainly, _ = federate(quick(name), tmp_path / "a", rounds=2)
    after, outcomes, _ = federate(secure(quick(name), 2), tmp_path / "b", rounds=2)
    assert same(after.tree(), plain.tree())
    assert [o.metrics for o in outcomes] == [o.metrics for o in plainly]
    assert all(not o.void and len(o.replied) == 3 for o in outcomes)


def test_scores_in_half_precision_give_the_same_sum(tmp_path):
    method = quick("prism", alpha=70)
    plain = federate(method, tmp_path / "a", rounds=1)[0]
    assert same(federate(secure(method, 2), tmp_path / "b", rounds=1)[0].tree(), plain.tree())


def test_sums_are_exact_and_equal_to_those_without_masks(tmp_path):
    fed, outcome, _ = run_one_round(Adds(), tmp_path / "a")
    plain = run_one_round(secure(Adds(), 0), tmp_path / "b")
    assert adds_up(fed, FIVE)
    assert same(fed.tree(), plain[0].tree())
    assert outcome.metrics == plain[1].metrics
    assert (outcome.floats_up, outcome.floats_down) == (plain[1].floats_up, plain[1].floats_down)


def test_the_order_of_arrival_changes_no_bit(tmp_path):
    three = Adds(Task((1, 8, 8), 0, 3, 3, secagg_threshold=2))
    plain = federate(three, tmp_path / "a", rounds=2, dropout=0.15)
    other = federate(three, tmp_path / "b", rounds=2, dropout=0.15, reverse=True)
    assert same(other[0].tree(), plain[0].tree())
    assert sorted(other[2].replies) == sorted(plain[2].replies)


def test_bytes_of_all_exchanges_are_counted(tmp_path):
    three = Adds(Task((1, 8, 8), 0, 3, 3, secagg_threshold=2))
    _, outcomes, traffic = federate(three, tmp_path, rounds=2)
    for counted, sent in (("down", traffic.requests), ("up", traffic.replies)):
        for client in shares():
            assert sum(getattr(o, counted)[client] for o in outcomes) == sum(len(b) for c, b in sent if c == client)
    assert len(traffic.replies) == 2 * 3 * 5


# -- dropouts ----------------------------------------------------------------------------------------------------------


def expected_outcome(leaves, clients, threshold):
    """Clients in the sum, or None for a void round."""
    there = [[c for c in clients if leaves.get(c, 9) > exchange] for exchange in range(5)]
    return there[2] if all(len(x) >= threshold for x in there) else None


WHEN = list(itertools.product(range(5), repeat=2))
MORE = np.random.default_rng(1).integers(0, 8, (24, 5)).tolist()


def test_any_two_of_five_clients_may_drop_out_at_any_exchange(tmp_path):
    for i, when in enumerate(WHEN):
        pair = [(0, 4), (1, 2), (3, 1)][i % 3]
        leaves = {FIVE[k]: at for k, at in zip(pair, when, strict=True)}
        fed, outcome, _ = run_one_round(Adds(), tmp_path / str(i), leaves)
        remain = expected_outcome(leaves, FIVE, 3)
        assert not outcome.void, leaves
        assert adds_up(fed, remain), leaves
        assert outcome.replied == remain
        assert outcome.excluded == {c: "gone" for c in FIVE if c not in remain}


def test_for_any_dropouts_the_sum_is_right_or_the_round_is_void(tmp_path):
    ends = set()
    for i, when in enumerate(MORE):
        leaves = dict(zip(FIVE, when, strict=True))
        fed, outcome, _ = run_one_round(Adds(), tmp_path / str(i), leaves)
        remain = expected_outcome(leaves, FIVE, 3)
        assert bool(outcome.void) == (remain is None), leaves
        assert adds_up(fed, remain) if remain else fed.server["closed"] == 0, leaves
        ends.add(outcome.void[2:30])
    assert len(ends) >= 4  # the patterns lead to several different ends


def test_more_than_64_clients_give_the_right_sum(tmp_path):
    many = [f"client-{k}" for k in range(66)]
    method = Adds(Task((1, 8, 8), 0, 3, 66, secagg_threshold=34))
    leaves = {c: [1, 2, 4][k % 3] for k, c in enumerate(many[34:])}
    fed, outcome, _ = run_one_round(method, tmp_path, leaves, clients=many)
    assert not outcome.void
    assert adds_up(fed, [c for c in many if leaves.get(c, 9) > 2])


def test_the_run_continues_after_a_void_round_and_after_dropouts(tmp_path):
    fed, outcome, _ = run_one_round(
        Adds(), tmp_path, dict.fromkeys(FIVE[:3], 4)
    )  # all trained, the sum could not be unmasked
    assert "2 clients remain" in outcome.void
    fed, outcome, received = run_one_round(Adds(), tmp_path, {"client-4": 1}, fed=fed)
    assert not outcome.void
    assert adds_up(fed, FIVE[:4], t=1)
    needed = [c for c, exchange, a in received if decode(a).header.kind is Kind.NEED_FULL]
    assert needed == FIVE[:4]  # they have the state of the void round, and need the full state
    fed, outcome, _ = run_one_round(Adds(), tmp_path, fed=fed)
    assert adds_up(fed, FIVE, t=2)


def test_a_client_that_lost_its_state_is_in_the_sum(tmp_path):
    fed, *_ = run_one_round(Adds(), tmp_path)
    (tmp_path / "client-2.safetensors").unlink()
    fed, _, received = run_one_round(Adds(), tmp_path, fed=fed)
    assert adds_up(fed, FIVE, t=1)
    kinds = [decode(a).header.kind for c, exchange, a in received if (c, exchange) == ("client-2", 2)]
    assert kinds == [Kind.NEED_FULL, Kind.REPLY]


def test_simulated_dropouts_give_the_right_sum_or_a_void_round(tmp_path):
    method = Adds(Task((1, 8, 8), 0, 12, 3, secagg_threshold=2))
    fed, outcomes, _ = federate(method, tmp_path, rounds=12, dropout=0.1)
    finished = [o for o in outcomes if not o.void]
    assert 0 < len(finished) < 12
    assert any(o.excluded for o in finished)
    for o, sums in zip(finished, fed.server["sums"], strict=True):
        assert all(np.array_equal(sums[k], v) for k, v in total(o.replied, o.round).items())


# -- killed and started again -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", range(1, 24, 4))
def test_a_server_killed_anywhere_in_a_round_resumes_to_the_same_bits(tmp_path, after):
    unbroken, *_ = run_one_round(Adds(), tmp_path / "a", {"client-1": 2})

    class Killed(Exception):
        pass

    count = itertools.count(1)

    def kill(client, exchange, answer):
        if next(count) == after:
            raise Killed
        return answer

    with pytest.raises(Killed):
        run_one_round(Adds(), tmp_path / "b", {"client-1": 2}, spoil=kill)
    again, *_ = run_one_round(Adds(), tmp_path / "b", {"client-1": 2})
    assert same(again.tree(), unbroken.tree())


def test_a_resumed_server_gets_stored_replies_and_no_second_draw(tmp_path, monkeypatch):
    _, _, first = run_one_round(Adds(), tmp_path)
    monkeypatch.setattr(Adds, "client_round", None)  # a second draw would fail
    _, outcome, second = run_one_round(Adds(), tmp_path)
    assert second == first
    assert not outcome.void


def test_a_resumed_server_with_other_clients_gets_no_second_shares(tmp_path):
    """Two vectors under the same masks would reveal their difference: clients refuse, the round is void."""
    run_one_round(Adds(), tmp_path)
    fed, outcome, _ = run_one_round(Adds(), tmp_path, {"client-4": 0})
    assert "shared their secrets" in outcome.void
    assert all("replay is refused" in outcome.excluded[c] for c in FIVE[:4])
    fed, outcome, _ = run_one_round(Adds(), tmp_path, fed=fed)
    assert adds_up(fed, FIVE, t=1)


def test_a_resumed_run_sends_the_full_state_to_the_same_clients(tmp_path):
    started, *_ = run_one_round(Adds(), tmp_path)
    (tmp_path / "client-2.safetensors").unlink()
    unbroken, *_ = run_one_round(Adds(), tmp_path, fed=started)
    again, outcome, _ = run_one_round(Adds(), tmp_path, fed=started)
    assert not outcome.excluded
    assert same(again.tree(), unbroken.tree())


def test_secrets_of_a_client_are_deleted_at_the_end_of_the_round(tmp_path):
    run_one_round(Adds(), tmp_path)
    assert load(tmp_path / "client-0.safetensors")["secrets"] == {"stage": 4}
