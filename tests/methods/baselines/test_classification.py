"""Federated classifiers, each compared with a plain implementation of its paper."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.federation import digits, federate, quick, same, shares
from vitrail.engines.replies import Failure
from vitrail.engines.replies import _check as check_part
from vitrail.engines.secagg.messages import MASK
from vitrail.methods.baselines import shared_pool
from vitrail.methods.baselines.sdafl import UNSURE
from vitrail.methods.messages import LAST_COUNTED, ServerMessage, Sums
from vitrail.nets.feature_moments import to_float
from vitrail.nets.flat import from_vector, to_vector
from vitrail.utils.errors import Malformed
from vitrail.utils.rng import Rng
from vitrail.utils.state import load as load_state
from vitrail.wire.message import Kind, decode, make_part

SOME = digits().train.take(np.arange(24))


def initial_server(method, data=None):
    return method.server_init(Rng((1,)), data)


def client_reply(method, server, data=SOME, state=None, t=0, full=True):
    """A client's reply; with a state, the server has counted its last one."""
    parts = {n: np.asarray(a) for n, (_, a) in method.broadcast(server, "a", full).parts.items()}
    parts |= {LAST_COUNTED: np.array([t - 1])} if state else {}
    return method.client_round(state or {}, ServerMessage(t, parts), data, Rng((2, t)))


def plain_sgd(method, vector, steps, correction=0.0, prox_mu=0.0):
    """Steps of SGD as in the papers, on the batches that the method draws, without dropout."""
    net = from_vector(method.net(), vector).eval()
    start = [p.detach().clone() for p in net.parameters()]
    for x, y in method.batches(SOME, steps, Rng((2, 0)), "cpu"):
        grads = torch.autograd.grad(F.cross_entropy(net(x), y), list(net.parameters()))
        with torch.no_grad():
            for p, g, w in zip(net.parameters(), grads, start, strict=True):
                p.sub_(method.learning_rate(0) * (g + correction + prox_mu * (p - w)))
    return to_vector(net)


@pytest.fixture
def _no_dropout(monkeypatch):
    monkeypatch.setattr(nn.Dropout, "forward", lambda _, x: x)


@pytest.mark.usefixtures("_no_dropout")
@pytest.mark.parametrize(("name", "prox_mu"), [("fedavg", 0.0), ("fedprox", 0.7), ("scaffold", 0.0)])
def test_local_steps_equal_the_papers(name, prox_mu):
    method = quick(name, local_steps=4, batch_size=8, **({"prox_mu": prox_mu} if prox_mu else {}))
    server = initial_server(method)
    _, reply = client_reply(method, server)
    moved = reply.parts["network"] / reply.parts["weight"][0]
    assert np.allclose(server["network"] + moved, plain_sgd(method, server["network"], 4, prox_mu=prox_mu), atol=1e-5)
    assert np.abs(moved).max() > 1e-3


def test_fedavg_weights_clients_by_their_number_of_images():
    method = quick("fedavg", clients=2)
    server = initial_server(method)
    replies = [client_reply(method, server, SOME.take(np.arange(n)))[1].parts for n in (6, 18)]
    sums = Sums({n: replies[0][n].astype(np.float64) + replies[1][n] for n in ("network", "weight")}, 2)
    after = method.finish_round(server, sums, Rng((3,)))["network"]
    moves = [r["network"] / r["weight"][0] for r in replies]
    assert np.allclose(after, server["network"] + 0.25 * moves[0] + 0.75 * moves[1], atol=1e-6)


def test_fedprox_stays_nearer_to_w_t_and_equals_fedavg_for_mu_0():
    server, long = initial_server(quick("fedavg")), {"local_steps": 12}
    far, near, same_as = (
        client_reply(m, server)[1].parts["network"]
        for m in (quick("fedavg", **long), quick("fedprox", prox_mu=5.0, **long), quick("fedprox", prox_mu=0.0, **long))
    )
    assert np.linalg.norm(near) < 0.9 * np.linalg.norm(far)
    assert np.allclose(same_as, far, atol=1e-7)


@pytest.mark.usefixtures("_no_dropout")
def test_scaffold_follows_option_2_and_corrects_the_steps():
    method = quick("scaffold", local_steps=3, clients=4)
    server = initial_server(method)
    c = np.full_like(server["network"], 0.01)
    state, reply = client_reply(method, {**server, "control": c})
    x, y = server["network"], server["network"] + reply.parts["network"]
    assert np.allclose(y, plain_sgd(method, x, 3, correction=0.01), atol=1e-5)  # c_i = 0: along g + c
    assert np.allclose(state["control"], -c + (x - y) / (3 * method.learning_rate(0)), atol=1e-4)
    assert np.allclose(reply.parts["control"], state["control"])
    sums = {"network": reply.parts["network"], "weight": np.ones(1), "control": reply.parts["control"]}
    after = method.finish_round({**server, "control": c}, Sums(sums, 1), Rng((3,)))
    assert np.allclose(after["control"], c + reply.parts["control"] / 4, atol=1e-6)  # |S|/N of the mean


def test_the_server_trains_on_its_own_images():
    method = quick("fedavg")
    nothing = Sums({"network": np.zeros(initial_server(method)["network"].size), "weight": np.ones(1)}, 1)
    with_some, without = initial_server(method, SOME), initial_server(method)
    assert same(method.finish_round(without, nothing, Rng((3,)))["network"], without["network"])
    tuned = method.finish_round(with_some, nothing, Rng((3,)))["network"]
    x, y = to_float(SOME.pixels), torch.from_numpy(SOME.labels)
    losses = [F.cross_entropy(from_vector(method.net(), v).eval()(x), y) for v in (with_some["network"], tuned)]
    assert losses[1] < losses[0]


# -- means ------------------------------------------------------------------------------------------------------------


def test_means_are_correct_and_sent_once():
    method = quick("naivemix", images_per_mean=4, max_means=3)
    server = initial_server(method)
    state, reply = client_reply(method, server)
    order = Rng((2, 0)).child("means").numpy().permutation(24)[:12]
    assert np.abs(reply.parts["means"][0] - SOME.pixels[order[:4]].mean(0)).max() <= 0.5
    assert reply.parts["mean_labels"].shape == (3, 10)
    assert np.allclose(reply.parts["mean_labels"].sum(1), 1)
    assert np.allclose(reply.parts["mean_labels"][0], np.bincount(SOME.labels[order[:4]], minlength=10) / 4)
    _, again = client_reply(method, server, state=state, t=1)
    assert again.parts["means"].size == again.parts["mean_labels"].size == 0


def test_every_client_receives_the_pool_once(tmp_path):
    _, _, traffic = federate(quick("fedmix"), tmp_path, indices=shares())
    sent = [(decode(b).header.round, "means" in {p.name for p in decode(b).parts}) for _, b in traffic.requests]
    assert [t for t, has in sent if has] == [1] * 3  # round 1 first finds that all clients lack it
    needs = [c for c, b in traffic.replies if decode(b).header.kind is Kind.NEED_FULL]
    assert sorted(needs) == sorted(shares())


@pytest.mark.parametrize("name", ["naivemix", "fedmix"])
def test_with_lambda_0_the_loss_is_cross_entropy(name):
    method, net = quick(name, mix_lambda=0.0), nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    x, y = to_float(SOME.pixels), torch.from_numpy(SOME.labels)
    soft = torch.full((24, 10), 0.1)
    assert method.loss(net, x, y, x.flip(0), soft).item() == pytest.approx(F.cross_entropy(net(x), y).item(), rel=1e-6)


def test_fedmix_equals_mixup_to_first_order():
    """Compare FedMix with a difference quotient along the means, NaiveMix with the two losses of mixed images."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10)).double()
    x, y = to_float(SOME.pixels).double(), torch.from_numpy(SOME.labels)
    mean, soft, lam = x.flip(0), torch.rand(24, 10, dtype=torch.double).softmax(1), 0.2

    def at(v, target):
        return F.cross_entropy(net(v), target)

    h, inner = 1e-6, (1 - lam) * x
    slope = (at(inner + h * mean, y) - at(inner - h * mean, y)) / (2 * h)
    wanted = (1 - lam) * at(inner, y) + lam * at(inner, soft) + lam * slope
    assert quick("fedmix", mix_lambda=lam).loss(net, x, y, mean, soft).item() == pytest.approx(wanted.item(), rel=1e-6)
    mixed = inner + lam * mean
    wanted = (1 - lam) * at(mixed, y) + lam * at(mixed, soft)
    assert quick("naivemix", mix_lambda=lam).loss(net, x, y, mean, soft).item() == pytest.approx(
        wanted.item(), rel=1e-9
    )


def test_malformed_means_are_refused():
    method = quick("naivemix")
    good = client_reply(method, initial_server(method))[1].parts
    with pytest.raises(Malformed):
        method.receive(initial_server(method), "a", {**good, "means": good["means"].ravel()[:-1]})
    declared = method.reply_spec()
    labels = make_part("mean_labels", declared["mean_labels"].codec, good["mean_labels"] + 1)
    with pytest.raises(Malformed, match="outside 0 to 1"):
        check_part(labels, declared, initial_server(method))


# -- generated images-------------------------------------------------------------------------------------------------


def test_generated_images_are_sent_once_and_labels_every_round():
    method = quick("sdafl")
    server = initial_server(method)
    state, first = client_reply(method, server)
    assert first.parts["pictures"].shape == (12, 1, 8, 8)
    assert first.parts["pictures"].dtype == np.uint8
    assert not np.isin(first.parts["pictures"].reshape(12, -1), SOME.pixels.reshape(24, -1)).all(1).any()
    _, later = client_reply(method, server, state=state, t=1)
    assert later.parts["pictures"].size == 0
    assert len(later.parts["labels"]) == 12


def test_pseudo_labels_are_the_models_where_it_is_confident():
    method = quick("sdafl", pseudo_label_threshold=0.5)

    class Brightness(nn.Module):
        def forward(self, x):
            return torch.eye(10)[3].repeat(len(x), 1) * torch.where(x.mean((1, 2, 3)) > 0, 9.0, 0.0)[:, None]

    images = np.stack([np.full((1, 8, 8), v, np.uint8) for v in (255, 0, 255)])
    assert method.pseudo_labels(Brightness(), images).tolist() == [3, UNSURE, 3]


def test_a_client_learns_from_images_of_other_clients():
    """The client has one class; another class is in the pool only."""
    method = quick("sdafl", local_steps=20, batch_size=16)
    labels = digits().train.labels
    own, other = (digits().train.take(np.flatnonzero(labels == k)[:40]) for k in (0, 1))
    server = initial_server(method)

    def probability(label):
        message = ServerMessage(0, {"network": server["network"], "labels": np.full(40, label, np.uint8)})
        _, reply = method.client_round({"own": own.pixels[:12], "pool": other.pixels}, message, own, Rng((2,)))
        net = from_vector(method.net(), server["network"] + reply.parts["network"] / reply.parts["weight"][0]).eval()
        return net(to_float(other.pixels)).softmax(1)[:, 1].mean()

    assert probability(1) > 5 * probability(UNSURE)


def test_pseudo_labels_outside_the_classes_are_refused():
    method = quick("sdafl")
    good = client_reply(method, initial_server(method))[1].parts
    for bad in ({"labels": np.full(12, 11, np.uint8)}, {"pictures": good["pictures"].ravel()[:-1]}):
        with pytest.raises(Malformed):
            method.receive(initial_server(method), "a", {**good, **bad})
    with pytest.raises(Malformed, match="never shared"):
        method.receive(initial_server(method), "a", {**good, "pictures": np.empty(0, np.uint8)})


def test_the_digest_of_a_pool_follows_its_content():
    shares_ = {c: {"x": np.full(2, k, np.uint8)} for k, c in enumerate("ba")}
    pool = shared_pool.collect(shares_)
    assert pool["parts"]["x"].tolist() == [1, 1, 0, 0]  # sorted by clients' names
    assert pool["name"] == shared_pool.pool_digest(pool["parts"]) != shared_pool.collect({"a": shares_["a"]})["name"]
    assert shared_pool.collect({})["parts"] == {}


def test_the_learning_rate_decays_to_zero():
    method = replace(quick("fedavg", rounds=10), lr=0.3)
    rates = [method.learning_rate(t) for t in range(11)]
    assert rates[0] == pytest.approx(0.3)
    assert rates[10] == pytest.approx(0, abs=1e-12)
    assert all(a > b for a, b in pairwise(rates))


def federate_with_losses(method, folder, *lost, quorum=1, rounds=4):
    """Run a federation in which some replies are lost: (round, client)."""
    last = MASK if method.task.secagg_threshold else 0  # the exchange of a client's update

    def gone(t, client, reply):
        return Failure("gone") if (t, client) in lost and decode(reply).header.exchange == last else reply

    fed, outcomes, _ = federate(method, folder, rounds=rounds, spoil=gone, quorum=quorum)
    states = {c: load_state(folder / f"{c}.safetensors")["state"] for c in shares()}
    return fed, outcomes, states


@pytest.mark.parametrize(("quorum", "secure"), [(1, 0), (3, 0), (1, 2)])
def test_scaffolds_c_stays_the_mean_of_all_c_i_after_lost_replies(quorum, secure, tmp_path):
    method = quick("scaffold", rounds=4)
    method = replace(method, task=replace(method.task, secagg_threshold=secure))
    fed, outcomes, states = federate_with_losses(method, tmp_path, (0, "client-1"), (2, "client-0"), quorum=quorum)
    assert [bool(o.void) for o in outcomes] == [quorum == 3, False, quorum == 3, False]
    mean = np.mean([states[c]["control"] for c in states], 0)
    assert np.abs(mean).max() > 0.05
    assert np.allclose(fed.server["control"], mean, atol=1e-5)


@pytest.mark.parametrize("name", ["naivemix", "fedmix", "sdafl"])
def test_shared_data_is_sent_again_until_it_is_received(name, tmp_path):
    method = quick(name, rounds=4)
    fed, outcomes, _ = federate_with_losses(method, tmp_path / "lost", (0, "client-1"), (1, "client-1"))
    assert [len(o.replied) for o in outcomes] == [2, 2, 3, 3]
    assert fed.server["pool"]["clients"] == sorted(shares())
    whole, *_ = federate_with_losses(method, tmp_path / "whole")
    assert set(fed.server["shares"]) == set(whole.server["shares"])
    part = "pictures" if name == "sdafl" else "means"
    for client in shares():  # the same bits as in the first attempt: another draw would reveal more
        assert np.array_equal(fed.server["shares"][client][part], whole.server["shares"][client][part])


@pytest.mark.parametrize("name", ["naivemix", "fedmix"])
def test_a_server_that_requests_the_means_again_gets_the_same_means(name):
    method = quick(name)
    server, state, sent = initial_server(method), {}, []
    for t, counted in enumerate(({}, {LAST_COUNTED: np.array([0])}, {})):
        parts = {n: np.asarray(a) for n, (_, a) in method.broadcast(server, "a", True).parts.items()}
        state, reply = method.client_round(state, ServerMessage(t, parts | counted), SOME, Rng((2, t)))
        sent.append(reply.parts["means"])
    assert sent[1].size == 0
    assert np.array_equal(sent[0], sent[2])


def test_pseudo_labels_match_their_images_after_a_discarded_round(tmp_path):
    lost = (0, "client-1"), (1, "client-0"), (1, "client-2")
    method = quick("sdafl")
    fed, *_ = federate_with_losses(method, tmp_path, *lost, quorum=2, rounds=2)
    assert set(fed.server["shares"]) == set(shares())
    assert fed.server["pool"]["clients"] == ["client-0", "client-2"]
    sent = method.broadcast(fed.server, "client-0", full=True).parts
    assert np.array_equal(
        sent["labels"][1], np.concatenate([fed.server["labels"][c] for c in ("client-0", "client-2")])
    )
    assert len(sent["pictures"][1]) == len(sent["labels"][1])
