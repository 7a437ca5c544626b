"""Baselines with PaDPaF's networks: Ditto, FedProx, FedAvg of everything, local training."""

import numpy as np
import pytest
import torch

from tests.federation import digits, federate, quick
from vitrail.experiment.settings import resolve
from vitrail.methods.base import ServerMessage
from vitrail.methods.padpaf import algorithm
from vitrail.methods.padpaf.losses import ProximalTerm
from vitrail.models.model_file import open_model
from vitrail.nets.flat import from_vector, to_vector, trainable_mask
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import load as load_state
from vitrail.utils.state import pack
from vitrail.wire.message import decode

CLASSES = tuple("0123456789")
SOME = digits().train.take(np.arange(40))
ALL = ("generator", "discriminator", "style", "style_discriminator")


def request(method, seed=1, t=0):
    server = method.server_init(Rng((seed,)))
    return ServerMessage(t, {name: array for name, (_, array) in method.broadcast(server, "a", True).parts.items()})


def test_a_personal_step_is_adam_on_the_gradient_with_the_proximal_term():
    """v_k after one step of D, by hand: autograd of F_k alone, then λ (v - w_t) and Adam in NumPy."""
    # one batch per round, and only D is trained
    method = quick("ditto", batch_size=64, d_steps=100, ditto_lambda=0.7, lr=0.01)
    state, _ = method.client_round({}, request(method), SOME, Rng((1,)))
    before, message, rng = state["personal"], request(method, seed=9, t=1), Rng((2,))
    after = method.client_round(state, message, SOME, rng)[0]["personal"]

    nets = {name: from_vector(net, before[name]) for name, net in method.networks().items()}
    model = algorithm.ClientGan.of(nets, "cpu")
    (real,) = algorithm.local_batches(method, SOME, rng.child("personal"))
    draw = rng.child("personal", "training").torch()
    noise = algorithm.latents(method, algorithm.labels_of_fakes(method, SOME), draw, pairs=True)
    loss, twins, _ = method.d_objective(model, real, noise)
    (loss + method.lam * twins).backward()
    moments = before["optimizers"]["D"]
    weights = [p for name in ("discriminator", "style_discriminator") for p in nets[name].parameters()]
    w_t = np.concatenate([message.parts[name] for name in ("discriminator", "style_discriminator")])
    sizes = np.cumsum([p.numel() for p in weights])[:-1]
    v_after = np.concatenate(
        [after[name][trainable_mask(nets[name])] for name in ("discriminator", "style_discriminator")]
    )
    for k, (p, w, end) in enumerate(zip(weights, np.split(w_t, sizes), np.split(v_after, sizes), strict=True)):
        v = p.detach().numpy().ravel().astype(np.float64)
        g = p.grad.numpy().ravel() + 0.7 * (v - w)
        m = 0.5 * moments[k]["exp_avg"].numpy().ravel() + 0.5 * g
        s = 0.9 * moments[k]["exp_avg_sq"].numpy().ravel() + 0.1 * g**2
        eta = 2 * 0.01 * 0.99
        plain = v - eta * (m / (1 - 0.5**2)) / (np.sqrt(s / (1 - 0.9**2)) + 1e-8)
        assert np.allclose(end, plain, atol=2e-5)


def test_the_proximal_term_is_half_mu_times_the_squared_distance():
    net = torch.nn.Linear(2, 2)
    start = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], np.float32)
    term = ProximalTerm(0.5, {"a": start})({"a": net, "b": torch.nn.Linear(2, 2)})
    theta = to_vector(net)
    assert term.item() == pytest.approx(0.25 * ((theta - start) ** 2).sum(), rel=1e-5)
    term.backward()
    assert torch.cat([net.weight.grad.flatten(), net.bias.grad]).numpy() == pytest.approx(0.5 * (theta - start))
    assert ProximalTerm(0.0, {"a": start})({"a": net}) == 0.0


@pytest.mark.parametrize("prox", [0.0, 1.0])
def test_dittos_global_model_equals_that_of_fedavg_or_fedprox(prox):
    ditto, fedavg = quick("ditto", prox_mu=prox), quick("padpaf", shared="everything", prox_mu=prox)
    ours = ditto.client_round({}, request(ditto), SOME, Rng((1,)))[1].parts
    plain = fedavg.client_round({}, request(fedavg), SOME, Rng((1,)).child("global"))[1].parts
    assert set(ours) == set(plain) > set(ALL)
    assert all(np.array_equal(ours[name], plain[name]) for name in plain)


def test_fedprox_keeps_federated_networks_near_the_servers():
    def moved(mu):
        method = quick("padpaf", shared="everything", prox_mu=mu, local_epochs=3)
        parts = method.client_round({}, request(method), SOME, Rng((1,)))[1].parts
        return sum(float(np.square(parts[name]).sum()) for name in ALL)

    assert moved(100.0) < moved(1.0) < moved(0.0)


def test_the_personal_model_starts_at_w_and_stays_near_it():
    def distance(lam):
        method = quick("ditto", ditto_lambda=lam, personal_epochs=3)
        v = method.client_round({}, request(method), SOME, Rng((1,)))[0]["personal"]
        nets, w = method.networks(), request(method).parts
        return np.sqrt(sum(np.square(v[n][trainable_mask(nets[n])] - w[n]).sum() for n in ALL))

    assert distance(100.0) < distance(1.0) < distance(0.0)
    still = quick("ditto", lr=1e-12)
    v = still.client_round({}, request(still), SOME, Rng((1,)))[0]["personal"]
    assert np.allclose(v["generator"], request(still).parts["generator"], atol=1e-9)


def test_a_round_takes_as_many_steps_as_a_round_of_padpaf():
    sizes = {"width": 4, "latent_dim": 8, "batch_size": 8}
    method, padpaf = (quick(name, **sizes, **_epochs(name)) for name in ("ditto", "padpaf"))
    state, _ = method.client_round({}, request(method), SOME.take(np.arange(32)), Rng((1,)))
    one, _ = padpaf.client_round({}, request(padpaf), SOME.take(np.arange(32)), Rng((1,)))
    assert state["global"]["t"] + state["personal"]["t"] == one["t"] == 2


def _epochs(name):
    defaults = resolve(name, {})
    return {key: getattr(defaults, key) for key in ("local_epochs", "personal_epochs") if hasattr(defaults, key)}


def test_ditto_always_shares_everything():
    with pytest.raises(VitrailError, match="shared"):
        resolve("ditto", {"shared": "content"})


def test_the_personal_model_never_leaves_the_client(tmp_path):
    method = quick("ditto")
    fed, _, traffic = federate(method, tmp_path)
    seen = b"".join(data for _, data in traffic.requests + traffic.replies)
    seen += b"".join(t.numpy().tobytes() for t in pack(fed.tree())[0].values())
    assert fed.server["style"][:8].tobytes() in seen
    for client in ("client-0", "client-1", "client-2"):
        own = load_state(tmp_path / f"{client}.safetensors")["state"]["personal"]
        pieces = [t.numpy().ravel() for t in pack(own)[0].values() if t.is_floating_point() and t.unique().numel() > 8]
        assert len(pieces) > 50
        for piece in pieces:
            for scaled in (piece, piece * np.float32(24 / 100)):
                at = int(np.flatnonzero(scaled)[0])
                assert scaled[at : at + 8].astype("<f4").tobytes() not in seen


def test_local_training_sends_only_metrics_and_the_server_stays_untrained(tmp_path):
    method = quick("padpaf", shared="nothing")
    start = method.server_init(Rng((5,)).child("server", "init"))
    fed, _, traffic = federate(method, tmp_path)
    sent = {part.name for _, reply in traffic.replies for part in decode(reply).parts}
    assert sent == {"weight", "metric.loss_d", "metric.loss_g", "metric.barlow_twins"}
    assert np.array_equal(fed.server["generator"], start["generator"])
    states = [load_state(tmp_path / f"client-{k}.safetensors")["state"] for k in (0, 1)]
    assert set(ALL) < set(states[0])
    a, b = (open_model(method.export_models(fed.server, s)["generator"], CLASSES) for s in states)
    assert not a.sample(4).equal(b.sample(4))


def test_with_everything_shared_clients_and_server_have_the_same_generator(tmp_path):
    method = quick("padpaf", shared="everything")
    fed, *_ = federate(method, tmp_path, rounds=1)
    state = load_state(tmp_path / "client-0.safetensors")["state"]
    assert not set(ALL) & set(state)
    own, common = (open_model(method.export_models(fed.server, s)["generator"], CLASSES) for s in (state, None))
    assert own.sample(4).equal(common.sample(4))
    assert common.z == 2 * method.latent_dim
