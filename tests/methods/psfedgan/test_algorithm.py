"""PS-FedGAN: G_s equals G_u bit for bit, the seed stays secret, and recovery never sends G."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.federation import RUN, digits, federate, quick, same, shares
from vitrail.data.dataset import Images
from vitrail.engines.client import Client
from vitrail.engines.client_store import ClientStore
from vitrail.engines.replies import Failure
from vitrail.experiment import settings as config
from vitrail.methods.base import ServerMessage, Sums, Task
from vitrail.methods.psfedgan import cloud, twin
from vitrail.methods.psfedgan.networks import generator_state, load_generator
from vitrail.models.model_file import load, load_classifier, open_classifier, open_model, save_model
from vitrail.nets.flat import from_vector, to_vector, vector_size
from vitrail.privacy.claims import claim
from vitrail.privacy.policy import Policy
from vitrail.utils.crypto import public
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import load as load_state
from vitrail.wire.message import Header, Kind, Message, decode, encode, make_part

TWO = shares(2)
CLASSES = tuple("0123456789")


def small(rounds=4, **settings):
    return quick("psfedgan", rounds=rounds, clients=2, **{"classifier_rounds": 0, **settings})


def private_state(folder, client):
    return load_state(folder / f"{client}.safetensors")["state"]


def agree(fed, folder, clients=TWO):
    """Whether G_s, its Adam and its digest equal those of G_u, bit for bit."""
    return all(
        same({k: fed.server["twins"][c][k] for k in ("generator", "adam", "digest")},
             {k: private_state(folder, c)["now"][k] for k in ("generator", "adam", "digest")})
        for c in clients
    )  # fmt: skip


def broadcast_parts(method, server, client="a"):
    return {name: array for name, (_, array) in method.broadcast(server, client, True).parts.items()}


def one_round(method, server, state, t=0, data=None):
    data = digits().train.take(np.arange(24)) if data is None else data
    after, reply = method.client_round(state, ServerMessage(t, broadcast_parts(method, server)), data, Rng((2, t)))
    return after, {name: np.asarray(a) for name, a in reply.parts.items()}


def initial_states(method):
    return method.server_init(Rng((1,)), digits().train.take(np.arange(30, 60))), method.client_init("a", Rng((3,)))


# -- the same bits on both sides --------------------------------------------------------------------------------------


def halves():
    """Two clients, each with five of the ten classes."""
    labels = digits().train.labels
    return {f"client-{k}": np.flatnonzero(np.isin(labels, range(5 * k, 5 * k + 5)))[:200] for k in range(2)}


def longer():
    """200 steps in eight messages, and two rounds for the classifier."""
    training = {"steps_per_message": 25, "batch_size": 16, "lr": 1e-3, "width": 8, "d_width": 8, "latent_dim": 16}
    return small(10, **training, classifier_rounds=2, classifier_steps=40, classifier_batch_size=32)


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    return (*federate(longer(), folder, indices=halves()), folder)


def test_after_200_steps_g_s_is_g_u_bit_for_bit(long):
    fed, outcomes, _, folder = long
    assert [len(o.replied) for o in outcomes] == [2] * 8 + [0] * 2
    assert [fed.server["twins"][c]["steps"] for c in TWO] == [200, 200]
    assert agree(fed, folder)
    start = longer().initial_generator(secret_of(fed, folder, "client-0"), 0)["generator"]
    assert np.abs(start - fed.server["twins"]["client-0"]["generator"]).max() > 0.05


def test_worker_processes_give_the_same_bits(long, tmp_path):
    fed, *_ = federate(longer(), tmp_path, indices=halves(), workers=2)
    assert agree(fed, tmp_path)
    assert same(fed.tree(), long[0].tree())


def test_the_number_of_server_threads_does_not_change_the_result():
    method, (server, state) = small(batch_size=32), initial_states(small())
    _, parts = one_round(method, server, state)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert method.receive(server, "a", parts)["twins"]["a"]["digest"] == parts["digest"].tobytes()
    finally:
        torch.set_num_threads(before)


def secret_of(fed, folder, client):
    key = private_state(folder, client)["key"]
    return twin.agree_on_secret(key, public(key), public(fed.server["key"]), client)


def test_steps_equal_a_plain_implementation_of_algorithm_1():
    method = small(d_steps=2, lr=0.01, d_lr=0.02)
    server, state = initial_states(method)
    data = digits().train.take(np.arange(24))
    after, parts = one_round(method, server, state)

    G = from_vector(method.generator(), after["before"]["generator"]).train()
    D = from_vector(method.discriminator("dcgan:4"), after["before"]["discriminator"])
    opt_g, opt_d = (torch.optim.Adam(n.parameters(), lr, (0.5, 0.999)) for n, lr in ((G, 0.01), (D, 0.02)))
    labels, seed = np.unique(data.labels), int(parts["seed"][0])
    statistics = {k: v.clone() for k, v in G.state_dict().items() if "running" in k}
    for t in range(2):
        for j in (1, 0):
            z, y = method.noise(seed, t, labels, j)
            fake = G(z, y).detach()
            pick = Rng((2, 0)).child("step", t, j, "real").numpy().choice(24, 8, replace=False)
            x, y_r = torch.from_numpy(data.pixels[pick]).float() / 127.5 - 1, torch.from_numpy(data.labels[pick])
            opt_d.zero_grad()
            (F.softplus(-D(x, y_r)).mean() + F.softplus(D(fake, y)).mean()).backward()
            opt_d.step()
        assert np.allclose(parts["discriminators"][t], to_vector(D), atol=1e-5)
        G.load_state_dict(statistics, strict=False)  # the server repeats only G's own step
        opt_g.zero_grad()
        F.softplus(-D(G(z, y), y)).mean().backward()
        opt_g.step()
        statistics = {k: v.clone() for k, v in G.state_dict().items() if "running" in k}
    assert np.allclose(after["now"]["generator"], to_vector(G), atol=1e-5)


# -- what travels -----------------------------------------------------------------------------------------------------


def windows(raw, n=16):
    """All substrings of n bytes, except those with few distinct values, such as zeros."""
    return {raw[i : i + n] for i in range(len(raw) - n + 1) if len(set(raw[i : i + n])) > 4}


def test_no_message_contains_g_its_seed_or_a_private_key(tmp_path):
    for coding in ("plain", "delta"):
        folder, method, fed = tmp_path / coding, small(3, d_coding=coding), None
        secrets, sent = set(), []
        for _ in range(3):
            fed, _, traffic = federate(method, folder, indices=TWO, rounds=1, fed=fed)
            sent += [data for _, data in traffic.requests + traffic.replies]
            for c in TWO:
                state, secret = private_state(folder, c), secret_of(fed, folder, c)
                hidden = [state["now"]["generator"], state["before"]["generator"]]
                hidden += [a["exp_avg"].numpy() for a in state["now"]["adam"].values()]
                secrets |= set().union(*(windows(np.ascontiguousarray(h).tobytes()) for h in hidden))
                for raw in (secret.root, secret.seed(0), state["key"], fed.server["key"]):
                    secrets |= windows(raw)
        seen = set().union(*map(windows, sent))
        assert len(secrets) > 10_000
        assert windows(np.ascontiguousarray(state["now"]["discriminator"]).tobytes()) & seen or coding == "delta"
        assert not secrets & seen


def test_an_eavesdropper_without_the_seed_gets_another_generator(long):
    """It has all D's, all z_t and l_t and the architecture, and repeats the steps from its own seed."""
    fed, _, traffic, folder = long
    method, c = longer(), "client-0"
    labels = fed.server["twins"][c]["labels"]

    def replayed(secret):
        G, optimizer = load_generator(method, method.initial_generator(secret, 0))
        D = method.discriminator("dcgan:8")
        for client, data in traffic.replies:
            parts = {p.name: p.array() for p in decode(data).parts}
            for t, vector in enumerate(parts["discriminators"] if client == c else ()):
                z, y = method.noise(int(parts["seed"][0]), t, labels)
                method.train_generator(optimizer, from_vector(D, vector), (G(z, y), y))
        return generator_state(0, G, optimizer)["generator"]

    G = private_state(folder, c)["now"]["generator"]
    assert np.allclose(replayed(secret_of(fed, folder, c)), G, atol=1e-6)  # with the seed it has G
    guess = replayed(twin.Secret(bytes(32), c))
    assert np.corrcoef(guess, G)[0, 1] < 0.9
    assert np.linalg.norm(guess - G) > 0.3 * np.linalg.norm(G)


def test_uploads_are_at_most_55_percent_of_sending_g_and_d_at_the_same_steps():
    for coding, most in (("plain", 0.55), ("delta", 0.25)):
        resolved = config.resolve("psfedgan", {"steps_per_message": 3, "batch_size": 4, "d_coding": coding})
        method = config.build_method(resolved, Task((1, 32, 32), 10, 20, 10))
        (server, state), sent = initial_states(method), []
        pixels = np.kron(digits().train.pixels[:8], np.ones((1, 1, 4, 4), np.uint8))
        for t in range(2):
            state, parts = one_round(method, server, state, t, Images(pixels, digits().train.labels[:8]))
            server = method.receive(server, "a", parts)
            named = tuple(make_part(n, method.reply_spec()[n].codec, a) for n, a in parts.items())
            sent.append(len(encode(Message(Header(Kind.REPLY, RUN, t, "a"), named))))
        full = 4 * 3 * (vector_size(method.generator()) + vector_size(method.discriminator(method.architecture)))
        assert sent[-1] <= most * full


def test_float32_cost_is_counted_for_every_coding(tmp_path):
    plain, delta = (federate(small(1, d_coding=c), tmp_path / c, indices=TWO)[1][0] for c in ("plain", "delta"))
    assert plain.floats_up == delta.floats_up >= 2 * 2 * 4 * vector_size(small().discriminator("dcgan:4"))
    assert sum(delta.up.values()) < sum(plain.up.values())


# -- recovery -----------------------------------------------------------------------------------------------------------


def one_bit(data):
    """A reply with the lowest bit of one weight of the last D changed, and a valid checksum."""
    message = decode(data)
    at = next(i for i, p in enumerate(message.parts) if p.name == "discriminators")
    raw = bytearray(message.parts[at].payload)
    raw[-4 * 50] ^= 1
    parts = [*message.parts]
    parts[at] = replace(parts[at], payload=bytes(raw))
    return encode(Message(message.header, tuple(parts)))


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("how", ["one wrong bit", "lost reply"])
@pytest.mark.parametrize("coding", ["plain", "delta"])
def test_a_wrong_bit_or_lost_reply_costs_one_round_then_both_sides_agree(tmp_path, how, lost, coding):
    def spoil(t, client, data):
        if (t, client) != (lost, "client-1"):
            return data
        return Failure("gone") if how == "lost reply" else one_bit(data)

    method = small(4, d_coding=coding)
    fed, outcomes, _ = federate(method, tmp_path, indices=TWO, spoil=spoil)
    assert [len(o.replied) for o in outcomes] == [2 - (t == lost) for t in range(4)]
    if how == "one wrong bit":
        assert "G_s differs from G_u after" in outcomes[lost].excluded["client-1"]
    assert [o.metrics["sent_back"] for o in outcomes] == [0.5 * (t == lost + 1) for t in range(4)]
    assert agree(fed, tmp_path)
    assert [fed.server["twins"][c]["steps"] for c in sorted(TWO)] == [8, 6]
    assert all(fed.server["twins"][c]["generation"] == 0 for c in TWO)


@pytest.mark.parametrize("killed", [1, 3, 5, 7])
def test_a_server_killed_between_checkpoints_recovers_every_reply(tmp_path, killed):
    """client-1 replies only after client-0 has finished all four rounds: the largest possible difference."""
    from vitrail.engines.async_rounds import AsyncRounds
    from vitrail.engines.journal import Journal
    from vitrail.engines.rounds import Federation
    from vitrail.engines.simulation import SimulatedClients, SimulationEngine

    method, rng = small(4), Rng((5,))
    plain, *_ = federate(method, tmp_path / "plain", indices=TWO)
    engine = SimulationEngine(SimulatedClients(method, RUN, rng, TWO, tmp_path), digits().train)

    def ask(requests, n):
        todo, waiting = iter(requests), []
        while True:
            waiting = sorted([*waiting, *iter(lambda: next(todo, None), None)])
            if not waiting:
                return
            answer = next(engine.ask([waiting.pop(0)]))
            if (n := n - 1) < 0:
                raise KeyboardInterrupt
            yield answer

    def run(n):
        fed = Federation(0, method.server_init(rng.child("server", "init"), digits().train.take(np.arange(3))))
        journal = Journal(tmp_path / "answers")
        rounds = AsyncRounds(method, fed, RUN, lambda _: sorted(TWO), 4, lambda r: ask(r, n), rng, journal)
        return list(rounds)[-1][1]

    with pytest.raises(KeyboardInterrupt):
        run(killed)
    fed = run(99)
    assert same(fed.tree(), plain.tree())
    assert agree(fed, tmp_path)
    assert all(twin["generation"] == 0 for twin in fed.server["twins"].values())


def test_nothing_of_a_refused_round_is_stored(tmp_path):
    before, *_ = federate(small(4), tmp_path / "a", indices=TWO, rounds=1)
    spoiled = lambda t, c, data: one_bit(data) if (t, c) == (1, "client-1") else data  # noqa: E731
    after, *_ = federate(small(4), tmp_path / "b", indices=TWO, rounds=2, spoil=spoiled)
    assert same(before.server["twins"]["client-1"], after.server["twins"]["client-1"])
    assert not same(before.server["twins"]["client-0"], after.server["twins"]["client-0"])


def test_a_client_that_lost_its_state_restarts_from_the_next_seed(tmp_path):
    fed, *_ = federate(small(4), tmp_path, indices=TWO, rounds=2)
    (tmp_path / "client-1.safetensors").unlink()
    fed, outcomes, _ = federate(small(4), tmp_path, indices=TWO, rounds=2, fed=fed)
    assert [o.metrics["sent_back"] for o in outcomes] == [0.5, 0]
    assert agree(fed, tmp_path)
    assert [(fed.server["twins"][c]["generation"], fed.server["twins"][c]["steps"]) for c in sorted(TWO)] == [
        (0, 8),
        (1, 4),
    ]
    assert secret_of(fed, tmp_path, "client-1").seed(0) != secret_of(fed, tmp_path, "client-1").seed(1)


def test_a_client_with_another_key_restarts_from_the_next_seed(tmp_path):
    method = small(4)
    server, state = initial_states(method)
    state, parts = one_round(method, server, state)
    server = method.receive(server, "a", parts)
    stranger = method.client_init("a", Rng((77,)))
    stranger, parts = one_round(method, server, stranger, 1)
    after = method.receive(server, "a", parts)["twins"]["a"]
    assert (after["generation"], after["key"]) == (1, public(stranger["key"]))
    assert np.array_equal(after["generator"], stranger["now"]["generator"])
    with pytest.raises(Malformed, match="generation 0"):  # another key cannot continue the generator of the first
        method.receive(server, "a", {**parts, "generation": np.array([0])})


def test_a_client_killed_before_or_after_storing_its_state_agrees_again(tmp_path, monkeypatch):
    method, folder = small(4), tmp_path
    fed, _, traffic = federate(method, folder / "whole", indices=TWO, rounds=2)
    client = Client("client-0", method, RUN, Rng((5,)), lambda: digits().train.take(TWO["client-0"]), folder / "killed")
    first, second = (data for c, data in traffic.requests if c == "client-0")
    expected = [data for c, data in traffic.replies if c == "client-0"]
    keep = ClientStore.save

    def killed(self, stored):
        raise KeyboardInterrupt

    for request, reply in ((first, expected[0]), (second, expected[1])):
        monkeypatch.setattr(ClientStore, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            client.answer(request)
        monkeypatch.setattr(ClientStore, "save", keep)
        assert client.answer(request) == reply  # killed before: trained again
        assert client.answer(request) == reply  # killed after: the stored reply
    assert agree(fed, folder / "killed", ["client-0"])


def test_a_client_stores_the_agreed_state_until_the_next_is_acknowledged(tmp_path):
    method = small(4)
    server, state = initial_states(method)
    state, parts = one_round(method, server, state)
    agreed = method.receive(server, "a", parts)
    name = agreed["twins"]["a"]["digest"]
    for t in (1, 2):  # two lost replies: it stays at the agreed state
        state, parts = one_round(method, agreed, state, t)
        assert state["before"]["digest"] == name
    final = method.receive(agreed, "a", parts)
    state, _ = one_round(method, final, state, 3)
    assert state["before"]["digest"] == final["twins"]["a"]["digest"] != name


# -- what the server refuses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"architecture": b"resnet:4"}, "not known"),
        ({"architecture": b"dcgan:4000"}, "too wide"),
        ({"architecture": b"dcgan:-4"}, "not known"),
        ({"architecture": b"dcgan:5"}, "expected 2 times"),
        ({"generation": np.array([3])}, "generation 3"),
        ({"labels": np.zeros(10)}, "no label"),
        ({"key": bytes(32)}, "is not a public key"),
        ({"seed": np.array([1], np.uint64)}, "differs"),
        ({"digest": bytes(32)}, "differs"),
    ],
)
def test_a_wrong_part_is_refused_with_the_reason(change, reason):
    method = small()
    server, state = initial_states(method)
    _, parts = one_round(method, server, state)
    changed = {k: np.frombuffer(v, np.uint8) if isinstance(v, bytes) else v for k, v in change.items()}
    with pytest.raises(Malformed, match=reason):
        method.receive(server, "a", {**parts, **changed})
    assert method.receive(server, "a", parts)["twins"]["a"]["steps"] == 2


@pytest.mark.parametrize("own", [{"d_width": 7}, {"d_architecture": "dense", "d_width": 5}])
def test_a_client_may_choose_and_change_its_discriminator(own):
    method = small(d_coding="delta")
    server, state = initial_states(method)
    for t, party in enumerate((method, replace(method, **own), replace(method, **own), method)):
        state, parts = one_round(party, server, state, t)
        server = method.receive(server, "a", parts)  # the server's settings do not change
        assert server["twins"]["a"]["architecture"] == party.architecture
    assert np.array_equal(server["twins"]["a"]["generator"], state["now"]["generator"])


def test_clients_with_different_discriminators_train_in_one_run(tmp_path):
    method = small(client_discriminators="client-1=dense:5, client-2=dcgan:7")
    fed, outcomes, _ = federate(method, tmp_path, rounds=2)
    assert all(len(o.replied) == 3 for o in outcomes if o.requested), outcomes[0].excluded
    named = {client: known["architecture"] for client, known in fed.server["twins"].items()}
    assert named == {"client-0": method.architecture, "client-1": "dense:5", "client-2": "dcgan:7"}
    for client, known in fed.server["twins"].items():
        assert np.array_equal(known["generator"], private_state(tmp_path, client)["now"]["generator"])


@pytest.mark.parametrize("wrong", ["client-1=resnet:4", "client-1=dcgan", "dense:5"])
def test_a_discriminator_that_cannot_be_built_is_refused_before_the_run(wrong):
    with pytest.raises(VitrailError, match=r"client_discriminators=.*for example, NAME=dense:32"):
        small(client_discriminators=wrong).reply_spec()


def test_another_runs_generators_cannot_be_loaded():
    with pytest.raises(VitrailError, match="resume"):
        small().server_init(Rng((1,)), None, {"twins": {}})


def test_in_deployment_keys_come_from_the_operating_system():
    method = small()
    deployed = replace(method, task=replace(method.task, noise_source="os"))
    for party, equal in ((method, True), (deployed, False)):
        assert (party.client_init("a", Rng((1,)))["key"] == party.client_init("a", Rng((1,)))["key"]) == equal
        assert (party.server_init(Rng((1,)))["key"] == party.server_init(Rng((1,)))["key"]) == equal


# -- labels and privacy -----------------------------------------------------------------------------------------------


def test_only_the_set_of_labels_is_sent_and_only_if_the_settings_allow_it():
    few = np.flatnonzero(np.isin(digits().train.labels, [3, 7]))[:30]
    data = digits().train.take(few)
    for settings, sent in (({}, [3, 7]), ({"label_sets": "all"}, None)):
        method = small(**settings)
        server, state = initial_states(method)
        _, parts = one_round(method, server, state, data=data)
        assert ("labels" in parts) == (sent is not None)
        if sent is not None:
            assert np.flatnonzero(parts["labels"]).tolist() == sent
        known = method.receive(server, "a", parts)["twins"]["a"]["labels"]
        assert known == (sent or list(range(10)))


def test_a_private_run_sends_no_labels_or_losses():
    method = quick("psfedgan, dp-sgd")
    assert set(method.reply_spec()) == {
        "digest", "key", "generation", "seed", "architecture", "discriminators", "metric.sent_back"
    }  # fmt: skip
    assert method.mechanism.noise.steps == method.steps_per_message * method.d_steps
    assert method.max_replies == 2
    assert not method.mechanism.public
    with pytest.raises(VitrailError, match="label_sets=all, or, if that set may be public, label_sets=public"):
        quick("psfedgan, dp-sgd", label_sets="declared").mechanism  # noqa: B018


def test_a_private_run_sends_labels_only_if_its_claim_states_it():
    method = quick("psfedgan, dp-sgd", label_sets="public")
    assert "labels" in method.reply_spec()
    assert "metric.loss_d" not in method.reply_spec()
    promised = claim(method.mechanism, 2, 1e-5, "os")
    assert promised["private"]
    assert promised["says"].endswith("level), where anyone may know which labels a client has images of")
    with pytest.raises(VitrailError, match="it releases, without noise, which labels a client has images of"):
        Policy(max_epsilon=1e6).check(method)
    server, state = initial_states(method)
    few = digits().train.take(np.flatnonzero(np.isin(digits().train.labels, [3, 7]))[:30])
    _, parts = one_round(method, server, state, data=few)
    assert np.flatnonzero(parts["labels"]).tolist() == [3, 7]


def test_every_published_d_has_noise(monkeypatch):
    from vitrail.privacy import clipping as clip

    method = quick("psfedgan, dp-sgd", d_steps=2)
    server, state = initial_states(method)
    _, noisy = one_round(method, server, state)
    monkeypatch.setattr(clip, "gaussian", lambda source, n, sigma: np.zeros(n))
    _, exact = one_round(method, server, state)
    assert (noisy["discriminators"] != exact["discriminators"]).mean(1).min() > 0.9


# -- models ----------------------------------------------------------------------------------------------------------


def test_the_classifier_learns_from_generated_images_only(long):
    method, server = longer(), {**long[0].server, "real": None, "classifier": None}
    for t in (9, 10):
        server = method.finish_round({**server, "rounds": t}, Sums({}, 0), Rng((4, t)))
    C = open_classifier(method.export_models(server)["classifier"], CLASSES)
    test = digits().test
    right = (C.classify(torch.from_numpy(test.pixels).float() / 255).numpy() == test.labels).mean()
    assert right > 0.2  # random guessing: 0.1; after 200 steps the generators are still rough


def test_classifier_batches_have_real_images_and_every_known_class(long):
    method, server = longer(), long[0].server
    real = {"pixels": np.full((5, 1, 8, 8), 255, np.uint8), "labels": np.arange(5)}

    def draw(n, fraction):
        run = replace(method, classifier_batch_size=n, real_fraction=fraction)
        return cloud.draw_batch(run, cloud.mixture(run, server), real, Rng((1,)).torch())

    x, y = draw(200, 0.25)
    assert int((x == 1).flatten(1).all(1).sum()) == 50
    assert set(y[:150].tolist()) == set(range(10))
    assert set(y[150:].tolist()) <= set(range(5))
    generated, _ = draw(64, 0.0)
    assert not (generated == 1).flatten(1).all(1).any()


def test_exported_models_can_be_saved_and_loaded(long, tmp_path):
    method, fed = longer(), long[0]
    models = method.export_models(fed.server)
    for name, model in models.items():
        save_model(tmp_path / f"{name}.safetensors", model, CLASSES, {"made": "here"})
    C = load_classifier(tmp_path / "classifier.safetensors")
    mixture = load(tmp_path / "generator.safetensors")
    x = mixture.sample(40, seed=2)
    assert x.equal(open_model(models["generator"], CLASSES).sample(40, seed=2))
    assert C.logits(x).equal(open_classifier(models["classifier"], CLASSES).logits(x))
    assert C.classes == CLASSES
    for wrong, reason in ((load_classifier, "not a classifier"), (load, "generates no images")):
        name = "generator" if wrong is load_classifier else "classifier"
        with pytest.raises(Malformed, match=reason):
            wrong(tmp_path / f"{name}.safetensors")
    with pytest.raises(VitrailError, match="takes"):
        C.classify(torch.zeros(1, 3, 8, 8))


def test_an_image_comes_from_a_generator_trained_on_its_label(long):
    method, fed = longer(), long[0]
    net = open_model(method.export_models(fed.server)["generator"], CLASSES).net
    z, y = torch.randn(400, net.z, generator=torch.Generator().manual_seed(1)), torch.arange(400) % 10
    who = net.component(torch.special.ndtr(z[:, -1]), y)
    assert who.equal((y >= 5).long())
    parts = [from_vector(method.generator(), fed.server["twins"][c]["average"]).eval() for c in sorted(TWO)]
    for k in (0, 1):
        assert torch.allclose(net(z, y)[who == k], parts[k](z[who == k, :-1], y[who == k]), atol=1e-5)


def test_the_exported_model_of_a_client_is_its_generator(tmp_path):
    method = small(2)
    fed, *_ = federate(method, tmp_path, indices=TWO)
    own = method.export_models(fed.server, private_state(tmp_path, "client-1"))["generator"]
    assert own.kind == "dcgan"
    weights = from_vector(method.generator(), fed.server["twins"]["client-1"]["generator"]).state_dict()
    assert all(own.tree["weights"][k].equal(v) for k, v in weights.items())
