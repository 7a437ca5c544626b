"""PRISM's messages: what is sent, how many bytes it takes, and that both sides decode the same values."""

import numpy as np
import pytest

from tests.federation import federate, quick, shares
from tests.methods.prism.test_algorithm import first_state, sent_masks
from tests.wire.ideal import ideal_bytes
from vitrail.methods.prism.messages import decode_mask, decode_scores
from vitrail.utils.rng import Rng
from vitrail.utils.state import load as load_state
from vitrail.wire.message import decode
from vitrail.wire.scores import levels


@pytest.mark.parametrize("settings", [{"mada": "expected"}, {"mada": "sampled", "alpha": 40}, {"alpha": 100}])
def test_clients_decode_exactly_the_servers_scores(settings, tmp_path):
    """A client that decodes counts and λ round after round has the server's scores, bit for bit."""
    method = quick("prism", rounds=4, **settings)
    fed, results, traffic = federate(method, tmp_path, rounds=3)
    assert all(len(o.replied) == 3 for o in results)
    assert {p.name for p in decode(traffic.requests[-1][1]).parts}.isdisjoint({"full"})
    server, _ = method.start_round(fed.server, list(shares()), Rng((1,)))
    for client in shares():
        state = load_state(tmp_path / f"{client}.safetensors")["state"]
        change = {name: array for name, (_, array) in method.broadcast(server, client, False).parts.items()}
        whole = {name: array for name, (_, array) in method.broadcast(server, client, True).parts.items()}
        assert np.array_equal(decode_scores(method, state, change), fed.server["s"])
        assert np.array_equal(decode_scores(method, {}, whole), fed.server["s"])


def test_score_layers_take_two_or_four_bytes_per_element(tmp_path):
    for codec, each in (("float16", 2), ("float32", 4)):
        method = quick("prism", rounds=1, alpha=100, score_codec=codec)
        _, (result,), _ = federate(method, tmp_path / codec)
        assert each * method.size < result.up["client-0"] < each * method.size + 200


def test_klms_uploads_less_than_a_tenth_of_a_bit_per_element(tmp_path):
    method = quick("prism", rounds=3, coding="klms")
    _, results, traffic = federate(method, tmp_path)
    assert all(len(o.replied) == 3 for o in results), results[0].excluded
    assert 8 * (results[1].up["client-0"] - 150) < 0.1 * method.size
    masks = sent_masks(method, first_state(method), type(traffic)([], traffic.replies[:3]))
    theta = 1 / (1 + np.exp(-first_state(method)["s"] / 1024))
    for mask in masks:
        assert set(np.unique(mask)) == {0, 1}
        assert abs(mask.mean() - theta.mean()) < 0.05
    assert not np.array_equal(masks[0], masks[1])  # each client has its own random draws


def test_packed_masks_take_one_bit_and_counts_of_three_clients_two(tmp_path):
    method = quick("prism", rounds=2, coding="packed")
    _, results, _ = federate(method, tmp_path)
    assert -(-method.size // 8) < results[1].up["client-0"] < method.size // 8 + 200
    assert -(-method.size // 4) < results[1].down["client-0"] < method.size // 4 + 200
    assert results[0].down["client-0"] < 200  # the first scores follow from the seed


def test_coding_changes_the_bytes_but_not_the_scores(tmp_path):
    fed, results, _ = federate(quick("prism", rounds=3), tmp_path / "a")
    packed, plain, _ = federate(quick("prism", rounds=3, coding="packed"), tmp_path / "b")
    assert np.array_equal(fed.server["s"], packed.server["s"])
    for t in (1, 2):
        assert results[t].up["client-0"] < 0.7 * plain[t].up["client-0"]
        assert results[t].down["client-0"] < plain[t].down["client-0"]
        assert results[t].floats_up == plain[t].floats_up
        assert results[t].floats_down == plain[t].floats_down
    assert results[1].down["client-0"] < 0.8 * plain[1].down["client-0"]  # θ is coded with the previous θ as the prior


def test_uploads_and_counts_are_within_one_percent_of_the_ideal_size(tmp_path):
    method = quick("prism", rounds=3)
    two, *_ = federate(method, tmp_path, rounds=2)
    three, _, traffic = federate(method, tmp_path, rounds=1, fed=two)
    known = levels(two.server["s"])
    total = np.zeros(method.size, int)
    for _, raw in traffic.replies:
        coded = next(p for p in decode(raw).parts if p.name == "mask").array()
        mask = decode_mask(method, two.server, coded)
        assert len(coded) <= 1.01 * ideal_bytes(mask, known) + 16
        total += mask
    assert len(three.server["counts"]) <= 1.01 * ideal_bytes(total, levels(two.server["s"], 4)) + 32


def test_new_clients_and_clients_that_lost_their_state_get_full_scores(tmp_path):
    method = quick("prism", rounds=4)
    fed, *_ = federate(method, tmp_path, rounds=2, indices=shares(2))
    _, _, traffic = federate(method, tmp_path, rounds=1, indices=shares(3), fed=fed)
    named = {client: {p.name for p in decode(raw).parts} for client, raw in traffic.requests}
    assert "counts" in named["client-0"]
    assert "full" in named["client-2"]

    fed, _, _ = federate(method, tmp_path / "x", rounds=2)
    (tmp_path / "x" / "client-1.safetensors").unlink()  # the client lost its state
    _, (result,), traffic = federate(method, tmp_path / "x", rounds=1, fed=fed)
    requests = [{p.name for p in decode(raw).parts} for client, raw in traffic.requests if client == "client-1"]
    assert ["counts" in requests[0], "full" in requests[1]] == [True, True]
    assert result.replied == ["client-0", "client-1", "client-2"]
