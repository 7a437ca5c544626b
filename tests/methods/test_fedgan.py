"""The federated GAN: what is averaged, what clients take back, what stays."""

import numpy as np
import pytest
import torch

from tests.federation import digits, federate, quick, same
from vitrail.engines.replies import Failure
from vitrail.methods.base import Incoming
from vitrail.methods.fedgan import UNIT
from vitrail.nets.flat import from_vector, to_vector
from vitrail.rng import Rng
from vitrail.state import load
from vitrail.wire.message import decode

SYNCS = {"d&g": {"generator", "discriminator"}, "g": {"generator"}, "d": {"discriminator"}, "none": set()}


def sent(data):
    return {p.name: p.array() for p in decode(data).parts}


@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_the_server_takes_the_mean_weighted_by_pictures(tmp_path, weights):
    method = quick("fedgan", rounds=1, weights=weights)
    holds = {"a": np.arange(16), "b": np.arange(16, 64)}
    fed, _, traffic = federate(method, tmp_path, holds=holds)
    count = {"a": 16 / UNIT, "b": 48 / UNIT} if weights == "examples" else {"a": 1, "b": 1}
    for name in ("generator", "discriminator"):
        own = {c: load(tmp_path / f"{c}.safetensors")["state"][name].astype(np.float64) for c in holds}
        mean = sum(count[c] * own[c] for c in holds) / sum(count.values())
        assert np.allclose(fed.server[name], mean, rtol=1e-5, atol=1e-7)
    assert {c: sent(r)["weight"][0] for c, r in traffic.replies} == pytest.approx(count)


@pytest.mark.parametrize("sync", SYNCS)
def test_clients_take_back_what_is_synchronised_and_keep_the_rest(tmp_path, sync):
    method = quick("fedgan", rounds=2, sync=sync)
    _, _, traffic = federate(method, tmp_path)
    first, second = traffic.requests[0][1], traffic.requests[-1][1]
    assert set(sent(first)) == {"generator", "discriminator"}  # everyone begins with the same networks
    assert set(sent(second)) == SYNCS[sync]
    assert all(set(sent(r)) >= {"generator", "discriminator"} for _, r in traffic.replies)


def test_without_synchronisation_a_client_trains_as_if_alone(tmp_path):
    method = quick("fedgan", rounds=3, sync="none")
    federate(method, tmp_path / "three")
    federate(method, tmp_path / "one", holds={"client-0": np.arange(24)})
    a, b = (load(tmp_path / f / "client-0.safetensors")["state"] for f in ("three", "one"))
    assert same(a, b)


def test_what_is_not_synchronised_need_not_travel(tmp_path):
    method = quick("fedgan", rounds=2, sync="g", upload="synced")
    fed, outcomes, traffic = federate(method, tmp_path)
    assert all("discriminator" not in sent(r) for _, r in traffic.replies)
    both = federate(quick("fedgan", rounds=2, sync="g"), tmp_path / "both")
    assert sum(outcomes[1].up.values()) < 0.8 * sum(both[1][1].up.values())
    assert same(fed.server["generator"], both[0].server["generator"])  # and the generator is the same


def test_a_late_client_begins_where_everyone_began(tmp_path):
    method = quick("fedgan", rounds=3, sync="none")
    late = lambda t, c, d: Failure("asleep") if (t, c) == (0, "client-2") else d  # noqa: E731
    fed, _, traffic = federate(method, tmp_path, rounds=2, spoil=late)
    told = [sent(r) for c, r in traffic.requests if c == "client-2"]
    assert same(told[1], told[0])
    assert not same(told[1]["generator"], fed.server["generator"])


def test_a_client_that_lost_its_state_is_sent_everything_again(tmp_path):
    method = quick("fedgan", rounds=2, sync="g")
    fed, *_ = federate(method, tmp_path, rounds=1)
    (tmp_path / "client-1.safetensors").unlink()
    _, outcomes, traffic = federate(method, tmp_path, rounds=1, fed=fed)
    assert sorted(outcomes[0].answered) == ["client-0", "client-1", "client-2"]
    asked = [set(sent(r)) for c, r in traffic.requests if c == "client-1"]
    assert asked == [{"generator"}, {"generator", "discriminator"}]


def test_a_step_equals_equations_two_and_three_written_plainly(tmp_path):
    """One batch, one epoch: replayed with torch alone from the same draws."""
    method = quick("fedgan", batch=16)
    server = method.server_init(Rng((1,)))
    data, rng = digits().train.take(np.arange(16)), Rng((2,))
    parts = {n: server[n] for n in ("generator", "discriminator")}
    state, _ = method.client_round({}, Incoming(0, parts), data, rng)

    nets = method.nets()
    G, D = (from_vector(nets[n], server[n]).train() for n in ("generator", "discriminator"))
    order = rng.child("order").numpy().permutation(16)
    draw = rng.child("training").torch()
    x, y = torch.from_numpy(data.pixels[order]).float() / 127.5 - 1, torch.from_numpy(data.labels[order])
    z, y_fake = torch.randn(16, 8, generator=draw), torch.randint(10, (16,), generator=draw)
    opt_d, opt_g = (torch.optim.Adam(n.parameters(), 2e-4, (0.5, 0.999)) for n in (D, G))
    fake = G(z, y_fake)
    sigmoid = torch.sigmoid
    value = torch.log(sigmoid(D(x, y))).mean() + torch.log(1 - sigmoid(D(fake.detach(), y_fake))).mean()
    opt_d.zero_grad()
    (-value).backward()  # Eq. 2: D ascends
    opt_d.step()
    opt_g.zero_grad()
    (-torch.log(sigmoid(D(fake, y_fake))).mean()).backward()  # Eq. 3, non-saturating
    opt_g.step()
    assert np.allclose(state["generator"], to_vector(G), atol=1e-5)
    assert np.allclose(state["discriminator"], to_vector(D), atol=1e-5)


def test_half_precision_halves_the_bytes(tmp_path):
    full = federate(quick("fedgan", rounds=1), tmp_path / "a")[1][0]
    half = federate(quick("fedgan", rounds=1, wire="float16"), tmp_path / "b")[1][0]
    assert half.up["client-0"] < 0.52 * full.up["client-0"]
    assert half.down["client-0"] < 0.52 * full.down["client-0"]
