"""Twin clients: noise that a client draws and does not use is detected in its replies."""

from dataclasses import replace

import numpy as np
import pytest

from tests.auditing.audited import target
from vitrail.auditing import twin_clients
from vitrail.nets.flat import vector_size
from vitrail.privacy import clipping as clip
from vitrail.utils.rng import Rng

pytestmark = pytest.mark.slow

SMALL = {"width": 4, "latent_dim": 8, "batch_size": 8, "rounds": 2, "epsilon": 2.0}
RUNS = {
    "gswgan": {"privacy": "gradient", "num_fakes": 16, "d_steps": 2},
    "fedgan": {"privacy": "dp-sgd", "dp_steps": 2, "sample_rate": 1.0},
    "psfedgan": {"privacy": "dp-sgd", "d_width": 4, "steps_per_message": 2, "sample_rate": 1.0, "d_coding": "int8"},
    "fullgan": {"privacy": "dp-sgd", "d_width": 4, "steps_per_message": 2, "sample_rate": 1.0},
}


@pytest.mark.parametrize("method", RUNS)
def test_twins_are_hidden_by_noise_and_distinguished_without_it(method, monkeypatch):
    attacked = target(method, 24, **SMALL, **RUNS[method])
    assert not any(lower.refutes for lower in twin_clients.attack(attacked).lowers)
    monkeypatch.setattr(clip, "gaussian", lambda source, n, sigma: np.zeros(n))
    assert any(lower.refutes for lower in twin_clients.attack(attacked).lowers)


def test_only_noise_comes_from_the_operating_system(monkeypatch):
    """A generator from a new key in each reply would hide twins like noise."""
    monkeypatch.setattr(clip, "gaussian", lambda source, n, sigma: np.zeros(n))
    attacked = target("psfedgan", 24, **SMALL, **RUNS["psfedgan"])
    (first, second) = (twin_clients.attack(attacked).lowers for _ in range(2))
    assert [lower.epsilon for lower in first] == [lower.epsilon for lower in second]


def test_twins_differ_by_one_unit():
    attacked = target("fedgan", **SMALL, **RUNS["fedgan"])
    one, more = twin_clients.twins(attacked, "example")
    assert len(more) == len(one) + 1
    np.testing.assert_array_equal(more.pixels[:-1], one.pixels)
    dark, light = twin_clients.twins(attacked, "client")
    assert (dark.pixels == 0).all()
    assert (light.pixels == 255).all()
    np.testing.assert_array_equal(dark.labels, light.labels)


def test_keys_and_digests_are_not_part_of_the_compared_reply():
    attacked = target("psfedgan", **SMALL, **RUNS["psfedgan"])
    method = replace(attacked.plan.method, d_coding="plain")
    data, _ = twin_clients.twins(attacked, "example")
    start = method.client_init(twin_clients.NAME, Rng((2,)))
    sent = twin_clients.reply(method, method.server_init(Rng((0,))), start, data, Rng((1,)))
    assert sent.size == 2 * vector_size(method.discriminator("dcgan:4"))
