"""Full-GAN sharing: the GANs and steps of psfedgan, but G is sent too, so messages are about twice as large."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.federation import RUN, digits, federate, quick, shares
from tests.methods.psfedgan.test_algorithm import halves, windows
from vitrail.data.dataset import Images
from vitrail.experiment import settings as config
from vitrail.methods.base import ServerMessage, Task
from vitrail.methods.psfedgan.cloud import mixture
from vitrail.methods.psfedgan.networks import load_discriminator, load_generator
from vitrail.models.model_file import load_classifier, save_model
from vitrail.nets.flat import from_vector, to_vector, vector_size
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import load as load_state
from vitrail.wire.message import Header, Kind, Message, decode, encode, make_part

TWO = shares(2)
CLASSES = tuple("0123456789")


def small(rounds=3, name="fullgan", **settings):
    return quick(name, rounds=rounds, clients=2, **{"classifier_rounds": 0, **settings})


def one_round(method, state=None, data=None, t=0, server=None):
    state = method.client_init("a", Rng((3,))) if state is None else state
    server = method.server_init(Rng((1,))) if server is None else server
    parts = {name: array for name, (_, array) in method.broadcast(server, "a", True).parts.items()}
    data = digits().train.take(np.arange(24)) if data is None else data
    return method.client_round(state, ServerMessage(t, parts), data, Rng((2, t)))


def test_steps_equal_a_plain_algorithm_1_and_every_g_and_d_is_sent():
    method = small(lr=0.01, d_lr=0.02)
    start = method.client_init("a", Rng((3,)))["now"]
    _, reply = one_round(method)
    data = digits().train.take(np.arange(24))
    G = from_vector(method.generator(), start["generator"]).train()
    D = from_vector(method.discriminator("dcgan:4"), start["discriminator"])
    opt_g, opt_d = (torch.optim.Adam(n.parameters(), lr, (0.5, 0.999)) for n, lr in ((G, 0.01), (D, 0.02)))
    for t in range(2):
        z, y = method.noise(Rng((2, 0)).child("z").seed(), t, np.unique(data.labels))
        pick = Rng((2, 0)).child("step", t, 0, "real").numpy().choice(24, 8, replace=False)
        x, y_r = torch.from_numpy(data.pixels[pick]).float() / 127.5 - 1, torch.from_numpy(data.labels[pick])
        fake = G(z, y)
        opt_d.zero_grad()
        (F.softplus(-D(x, y_r)).mean() + F.softplus(D(fake.detach(), y)).mean()).backward()
        opt_d.step()
        opt_g.zero_grad()
        F.softplus(-D(fake, y)).mean().backward()
        opt_g.step()
        assert np.allclose(reply.parts["discriminators"][t], to_vector(D), atol=1e-5)
        assert np.allclose(reply.parts["generators"][t], to_vector(G), atol=1e-5)


def test_from_the_same_start_it_equals_a_user_of_psfedgan_bit_for_bit():
    """The two methods differ in what is sent and in nothing else."""
    full, ps = small(), small(name="psfedgan")
    before = full.client_init("a", Rng((3,)))["now"]
    data = digits().train.take(np.arange(24))
    _, reply = one_round(full)
    G, D = load_generator(ps, before), load_discriminator(ps, before)
    rows = [step[0] for step in ps.train_user(G, D, data, Rng((2, 0)).child("z").seed(), Rng((2, 0)))]
    assert np.array_equal(reply.parts["discriminators"], rows)
    assert np.array_equal(reply.parts["generators"][-1], to_vector(G[0]))
    assert {f.name for f in fields(ps)} - {f.name for f in fields(full)} == {
        "d_coding",
        "client_discriminators",
        "key_source",
    }


def reply_bytes(name, **settings):
    """Bytes of one reply at the default widths: 32x32 images, one step."""
    method = config.build_method(
        config.resolve(name, {"steps_per_message": 1, **settings}), Task((1, 32, 32), 10, 20, 10)
    )
    pixels = np.kron(digits().train.pixels[:20], np.ones((1, 1, 4, 4), np.uint8))
    _, reply = one_round(method, data=Images(pixels, digits().train.labels[:20]))
    declared = method.reply_spec()
    parts = tuple(make_part(n, declared[n].codec, np.asarray(a)) for n, a in reply.parts.items())
    return len(encode(Message(Header(Kind.REPLY, RUN, 0, "a"), parts)))


@pytest.mark.parametrize(("coding", "most"), [("plain", 0.55), ("delta", 0.25), ("int8", 0.07), ("int4", 0.04)])
def test_psfedgan_sends_at_most_55_percent_as_much(coding, most):
    assert reply_bytes("psfedgan", d_coding=coding) <= most * reply_bytes("fullgan")


def test_the_server_and_any_eavesdropper_have_each_clients_last_g(tmp_path):
    method = small(2)
    fed, _, traffic = federate(method, tmp_path, indices=TWO)
    for c in TWO:
        own = load_state(tmp_path / f"{c}.safetensors")["state"]["now"]
        assert np.array_equal(fed.server["users"][c]["generator"], own["generator"])
        seen = set().union(*(windows(data) for who, data in traffic.replies if who == c))
        assert windows(own["generator"].tobytes()) <= seen
        assert own["steps"] == 4
    assert {p.name for _, d in traffic.replies for p in decode(d).parts} == set(method.reply_spec())


def test_the_initial_generator_depends_on_the_clients_random_stream():
    method = small()
    a, b, c = (method.client_init("x", Rng((k,)))["now"]["generator"] for k in (1, 1, 2))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


def test_a_reply_without_labels_and_a_warm_start_are_refused():
    method = small()
    _, reply = one_round(method)
    parts = {k: np.asarray(v) for k, v in reply.parts.items()}
    with pytest.raises(Malformed, match="no label"):
        method.receive(method.server_init(Rng((1,))), "a", {**parts, "labels": np.zeros(10)})
    with pytest.raises(VitrailError, match="resume"):
        method.server_init(Rng((1,)), None, {"users": {}})


def test_the_mixture_has_each_clients_labels_and_trains_a_classifier(tmp_path):
    method = small(6, classifier_rounds=2, classifier_steps=5)
    fed, outcomes, _ = federate(method, tmp_path, indices=halves())
    assert [len(o.replied) for o in outcomes] == [2] * 4 + [0] * 2
    assert mixture(method, fed.server).knows.tolist() == [[k < 5 for k in range(10)], [k >= 5 for k in range(10)]]
    models = method.export_models(fed.server)
    assert set(models) == {"generator", "classifier"}
    save_model(tmp_path / "c.safetensors", models["classifier"], CLASSES, {"made": "here"})
    x = torch.from_numpy(digits().test.pixels[:5]).float() / 255
    assert load_classifier(tmp_path / "c.safetensors").logits(x).shape == (5, 10)
    own = method.export_models(fed.server, load_state(tmp_path / "client-1.safetensors")["state"])["generator"]
    assert own.kind == "dcgan"


def test_with_dp_sgd_no_labels_or_losses_are_sent():
    method = quick("fullgan, dp-sgd")
    assert set(method.reply_spec()) == {"generators", "discriminators"}
    assert method.mechanism.noise == quick("psfedgan, dp-sgd").mechanism.noise


def test_a_gan_that_is_no_longer_finite_is_not_sent():
    with pytest.raises(VitrailError, match="lower lr"):
        one_round(replace(small(steps_per_message=4), lr=1e30))


@pytest.mark.parametrize("name", ["fullgan", "psfedgan"])
def test_a_message_that_would_be_too_large_is_refused_before_training(name):
    large = Task((1, 32, 32), 10, 20, 10)
    with pytest.raises(VitrailError, match=r"steps_per_message=1000: .* use fewer steps"):
        replace(quick(name, steps_per_message=1000, width=64, d_width=128), task=large).reply_spec()
    fits = replace(quick(name, steps_per_message=100, width=64, d_width=64), task=large)
    parts = fits.reply_spec()
    D = vector_size(fits.discriminator(fits.architecture))
    assert 4 * 100 * D > 2**28
    assert parts["discriminators"].most_bytes >= 4 * 100 * D
