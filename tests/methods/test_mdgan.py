"""MD-GAN: the gradients that clients return, the server's step on them, and swaps of discriminators."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.federation import digits, federate, quick, same, shares
from vitrail.engines.replies import Failure
from vitrail.methods.base import ServerMessage, Sums
from vitrail.methods.fakes import pack
from vitrail.nets.flat import from_vector, to_vector
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import load
from vitrail.wire.message import decode

EXACT = {"fake_dtype": "float32", "wire_dtype": "float32"}


def sent(data):
    return {p.name: p.array() for p in decode(data).parts}


def requests(traffic, round_):
    """Return the parts of each client's request in a round."""
    return {c: sent(r) for c, r in traffic.requests if decode(r).header.round == round_}


def client_state(folder, client):
    return load(folder / f"{client}.safetensors")["state"]


def equal(method, a, b):
    """Return whether two discriminators have the same weights, ignoring BatchNorm's statistics."""
    nets = (from_vector(method.discriminator(), v) for v in (a, b))
    return all(p.allclose(q, rtol=0, atol=1e-20) for p, q in zip(*(n.parameters() for n in nets), strict=True))


def minus_log(D, x, y, g_loss):
    """Return the generator's loss as papers write it."""
    p = torch.sigmoid(D(x, y))
    return -torch.log(p).mean() if g_loss == "nonsaturating" else torch.log(1 - p).mean()


@pytest.mark.parametrize("g_loss", ["nonsaturating", "minimax"])
@pytest.mark.parametrize("steps", [1, 3])
def test_the_returned_gradient_equals_that_of_the_loss_in_plain_torch(g_loss, steps):
    method = quick("mdgan", g_loss=g_loss, d_steps=steps, lr=0.01, **EXACT)
    method = replace(method, task=replace(method.task, shape=(1, 16, 16)))  # large enough for BatchNorm in D
    draw = torch.Generator().manual_seed(1)
    pixels = torch.randint(256, (40, 1, 16, 16), generator=draw, dtype=torch.uint8).numpy()
    data, rng = replace(digits().train.take(np.arange(40)), pixels=pixels), Rng((2,))
    state = method.client_init("a", Rng((3,)))
    x_g, x_d = (torch.rand(16, 1, 16, 16, generator=draw) * 2 - 1 for _ in "gd")
    y_g, y_d = (torch.randint(10, (16,), generator=draw) for _ in "gd")
    parts = {name: t.numpy() for name, t in {"x_g": x_g, "x_d": x_d, "y_g": y_g, "y_d": y_d}.items()}
    after, reply = method.client_round(state, ServerMessage(0, parts), data, rng)

    D = from_vector(method.discriminator(), state["discriminator"]).train()
    adam = torch.optim.Adam(D.parameters(), 0.01, (0.5, 0.999))
    pick = rng.child("real").numpy().choice(40, 16, replace=False)
    x_r, y_r = torch.from_numpy(data.pixels[pick]).float() / 127.5 - 1, torch.from_numpy(data.labels[pick])
    for _ in range(steps):
        value = torch.log(torch.sigmoid(D(x_r, y_r))).mean() + torch.log(1 - torch.sigmoid(D(x_d, y_d))).mean()
        adam.zero_grad()
        (-value).backward()
        adam.step()
    x_g.requires_grad_()
    minus_log(D, x_g, y_g, g_loss).backward()
    assert np.allclose(reply.parts["gradient"] / 16, x_g.grad.numpy(), rtol=1e-3, atol=1e-7)
    assert np.abs(x_g.grad.numpy()).max() > 1e-5  # large enough for the line above to fail
    assert np.allclose(after["discriminator"], to_vector(D), atol=1e-5)


@pytest.mark.parametrize(("k", "away"), [(1, ""), (2, ""), (3, ""), (2, "client-1")])
def test_the_servers_step_equals_adam_on_the_mean_loss_in_one_graph(tmp_path, k, away):
    """G, all D and the mean of their losses in one graph, over three rounds with the same Adam."""
    method = quick("mdgan", k=k, swap_every=0, **EXACT)
    fed, clients = None, sorted(shares())
    G = from_vector(method.generator(), method.server_init(Rng((5,)).child("server", "init"))["generator"]).train()
    adam = torch.optim.Adam(G.parameters(), 2e-4, (0.5, 0.999))
    for t in range(3):
        before = to_vector(G)
        gone = lambda _, c, d: Failure("away") if c == away else d  # noqa: E731
        fed, *_ = federate(method, tmp_path, rounds=1, fed=fed, spoil=gone)
        start = {"rounds": t, "generator": before, "adam": None}
        seed = method.start_round(start, clients, Rng((5,)).child("server", t, "open"))[0]["seed"]
        batches = [method.noise(seed, j) for j in range(k)]
        fakes = [(G(z, y), y) for z, y in batches]
        losses = []
        for n, client in enumerate(clients):
            D = from_vector(method.discriminator(), client_state(tmp_path, client)["discriminator"]).train()
            if client != away:
                losses.append(minus_log(D, *fakes[n % k], "nonsaturating"))
        adam.zero_grad()
        torch.stack(losses).mean().backward()
        adam.step()
        assert np.allclose(fed.server["generator"], to_vector(G), atol=2e-6)
        assert np.abs(before - to_vector(G)).max() > 1e-4  # a step is a hundred times the tolerance


def test_client_n_gets_the_generated_batches_n_and_n_plus_1(tmp_path):
    method = quick("mdgan", k=3, **EXACT)
    _, _, traffic = federate(method, tmp_path, rounds=1)
    server = method.server_init(Rng((5,)).child("server", "init"))
    seed = method.start_round(server, sorted(shares()), Rng((5,)).child("server", 0, "open"))[0]["seed"]
    G = from_vector(method.generator(), server["generator"]).train()
    for n, client in enumerate(sorted(shares())):
        parts = requests(traffic, 0)[client]
        for name, j in (("g", n % 3), ("d", (n + 1) % 3)):
            z, y = method.noise(seed, j)
            assert np.array_equal(parts[f"x_{name}"], G(z, y).detach().numpy())
            assert np.array_equal(parts[f"y_{name}"], y.numpy())


@pytest.mark.parametrize(("clients", "k"), [(1, 1), (2, 1), (3, 1), (4, 2), (10, 3), (16, 4)])
def test_the_default_number_of_batches_is_log2_of_the_clients(clients, k):
    method = quick("mdgan", k=None, clients=clients)
    started, _ = method.start_round(method.server_init(Rng((1,))), [f"c{n}" for n in range(clients)], Rng((2,)))
    assert len(started["fakes"]) == k


def test_a_batch_used_for_both_purposes_is_sent_once(tmp_path):
    _, _, traffic = federate(quick("mdgan", k=1, swap_every=0), tmp_path, rounds=1)
    assert all(set(parts) == {"x_g", "y_g"} for parts in requests(traffic, 0).values())


def test_after_a_swap_each_client_has_another_clients_discriminator(tmp_path):
    """With a learning rate near zero a discriminator changes only by a swap."""
    method = quick("mdgan", rounds=3, swap_every=2, lr=1e-30, wire_dtype="float32")
    fed, _, traffic = federate(method, tmp_path, rounds=2)
    before = {c: client_state(tmp_path, c)["discriminator"] for c in shares()}
    assert not any("heir" in parts for parts in requests(traffic, 0).values())
    heirs = {c: bytes(parts["heir"]).decode() for c, parts in requests(traffic, 1).items()}
    assert sorted(heirs) == sorted(heirs.values()) == sorted(shares())
    assert all(heir != c for c, heir in heirs.items())

    _, _, last = federate(method, tmp_path, rounds=1, fed=fed)
    after = {c: client_state(tmp_path, c)["discriminator"] for c in shares()}
    for sender, heir in heirs.items():
        assert equal(method, after[heir], before[sender])
        assert not equal(method, after[heir], before[heir])
        assert client_state(tmp_path, heir)["adam"][0]["step"] == 1  # Adam restarted
    assert not any("heir" in parts for parts in requests(last, 2).values())  # no swap after the last round


def test_a_received_discriminator_is_trained_by_its_new_client(tmp_path):
    method = quick("mdgan", rounds=2, wire_dtype="float32")
    fed, _, traffic = federate(method, tmp_path, rounds=1)
    heirs = {c: bytes(parts["heir"]).decode() for c, parts in requests(traffic, 0).items()}
    sender = next(c for c, heir in heirs.items() if heir == "client-0")
    swapped = client_state(tmp_path, sender)["discriminator"]
    _, _, traffic = federate(method, tmp_path, rounds=1, fed=fed)
    message = ServerMessage(1, {p.name: p.array() for p in decode(traffic.requests[0][1]).parts if not p.peer})
    data, rng = digits().train.take(shares()["client-0"]), Rng((5,)).child("client", "client-0", 1, 0)
    alone, _ = method.client_round({"discriminator": swapped, "adam": None}, message, data, rng)
    assert same(client_state(tmp_path, "client-0"), alone)


def test_the_bytes_of_a_swap_are_counted_up_and_down(tmp_path):
    swapping = federate(quick("mdgan", rounds=2), tmp_path / "a")[1]
    never = federate(quick("mdgan", rounds=2, swap_every=0), tmp_path / "b")[1]
    payload = 2 * to_vector(quick("mdgan").discriminator()).size  # float16
    for client in shares():
        assert payload < swapping[0].up[client] - never[0].up[client] < payload + 60
        assert payload < swapping[1].down[client] - never[1].down[client] < payload + 60
        assert swapping[1].up[client] == never[1].up[client]


def test_an_absent_client_gets_its_new_discriminator_when_it_returns(tmp_path):
    method = quick("mdgan", rounds=4, swap_every=2, lr=1e-30, wire_dtype="float32")
    away = lambda t, c, d: Failure("absent") if (t, c) == (2, "client-2") else d  # noqa: E731
    fed, _, traffic = federate(method, tmp_path, rounds=3, spoil=away)
    sender = next(c for c, parts in requests(traffic, 1).items() if bytes(parts["heir"]) == b"client-2")
    _, _, traffic = federate(method, tmp_path, rounds=1, fed=fed)
    (received,) = (p for p in decode(dict(traffic.requests)["client-2"]).parts if p.peer)
    assert (received.name, received.peer) == ("discriminator", sender)
    assert equal(method, client_state(tmp_path, "client-2")["discriminator"], received.array())


def test_without_swaps_discriminators_are_never_sent(tmp_path):
    method = quick("mdgan", swap_every=0)
    _, _, traffic = federate(method, tmp_path)
    assert "discriminator" not in method.reply_spec()
    assert all(set(sent(r)) == {"gradient", "metric.loss_g", "metric.loss_d"} for _, r in traffic.replies)


def test_fakes_and_gradients_are_sent_in_the_chosen_number_format(tmp_path):
    down, up = {}, {}
    for fake, wire in (("uint8", "float16"), ("float16", "float16"), ("float32", "float32")):
        method = quick("mdgan", fake_dtype=fake, wire_dtype=wire, swap_every=0)
        result = federate(method, tmp_path / fake, rounds=1)[1][0]
        down[fake], up[wire] = result.down["client-0"], result.up["client-0"]
    values = 16 * 8 * 8  # per batch: two batches down, one gradient up
    assert down["float16"] - down["uint8"] == 2 * values
    assert down["float32"] - down["uint8"] == 2 * 3 * values
    assert up["float32"] - up["float16"] == 2 * values


def test_received_fakes_are_within_half_a_grey_level():
    method = quick("mdgan")
    x = torch.linspace(-1, 1, 999).reshape(1, 1, 27, 37)
    (received, _), _ = method.receive_batches(ServerMessage(0, {"x_g": pack(x, "uint8")}))
    assert (received - x).abs().max() <= 0.5 / 127.5 + 1e-6
    assert (received.min(), received.max()) == (-1, 1)


def test_8_bits_and_float16_change_the_gradient_by_less_than_2_percent(tmp_path):
    def gradient(name, **settings):
        adam = federate(quick("mdgan", rounds=1, **settings), tmp_path / name)[0].server["adam"]
        return np.concatenate([adam[i]["exp_avg"].numpy().ravel() for i in adam])  # half the gradient, after one round

    rounded, exact = gradient("rounded"), gradient("exact", **EXACT)
    assert 0 < np.linalg.norm(rounded - exact) < 0.02 * np.linalg.norm(exact)


def test_the_servers_memory_does_not_grow_with_the_number_of_clients():
    def nbytes(clients):
        names = [f"c{n}" for n in range(clients)]
        method = quick("mdgan", clients=clients, k=2)
        server, _ = method.start_round(method.server_init(Rng((1,))), names, Rng((2,)))
        for name in names:
            server = method.receive(server, name, {"gradient": np.ones((16, 1, 8, 8), np.float32)})
        assert sum(g.sum() for g in server["gradients"]) == clients * 16 * 64  # all were added
        return sum(a.nbytes for a in server["gradients"]) + sum(f["x"].nbytes for f in server["fakes"])

    assert nbytes(3) == nbytes(40)


def test_a_checkpoint_has_only_the_generator_and_its_adam(tmp_path):
    fed, *_ = federate(quick("mdgan"), tmp_path, rounds=1)
    assert set(fed.server) == {"rounds", "generator", "adam"}


def test_finishing_a_round_does_not_modify_the_state_before_it(tmp_path):
    """A round that diverges is discarded: the server continues from the state before it."""
    method = quick("mdgan")
    fed, *_ = federate(method, tmp_path, rounds=1)
    server, _ = method.start_round(fed.server, ["a"], Rng((1,)))
    server = method.receive(server, "a", {"gradient": np.full((16, 1, 8, 8), 3e38, np.float32)})
    before = deepcopy(server)
    method.finish_round(server, Sums({}, 1), Rng((2,)))
    assert same(server, before)


def test_a_run_can_start_from_another_runs_state(tmp_path):
    method = quick("mdgan")
    fed, *_ = federate(method, tmp_path)
    first = method.server_init(Rng((9,)), None, fed.server)
    assert same(first["generator"], fed.server["generator"])
    assert same(first["adam"], fed.server["adam"])
    faster = quick("mdgan", lr=0.01)
    assert faster.adam(faster.generator(), first["adam"]).param_groups[0]["lr"] == 0.01  # the new run's rate
    with pytest.raises(VitrailError, match="another width"):
        quick("mdgan", width=8).server_init(Rng((9,)), None, fed.server)
