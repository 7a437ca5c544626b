"""PS-FedGAN with rounded discriminators: G steps against the rounded D, D_u stays exact, no privacy is claimed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.federation import digits, federate, quick, shares
from tests.methods.psfedgan.test_algorithm import (
    agree,
    broadcast_parts,
    initial_states,
    one_round,
    private_state,
    small,
)
from vitrail.data.dataset import Images
from vitrail.engines.replies import Failure
from vitrail.methods.base import ServerMessage
from vitrail.nets.flat import from_vector, to_vector, vector_size
from vitrail.privacy.claims import claim
from vitrail.utils.errors import Malformed
from vitrail.utils.rng import Rng
from vitrail.wire.message import decode
from vitrail.wire.quantization import quantize

TWO = shares(2)
both = pytest.mark.parametrize("coding", ["int8", "int4"])


@both
def test_rounded_g_s_equals_g_u_bit_for_bit_after_lost_replies(tmp_path, coding):
    method = small(5, d_coding=coding)
    lost = lambda t, c, data: Failure("gone") if (t, c) == (2, "client-1") else data  # noqa: E731
    fed, outcomes, _ = federate(method, tmp_path, indices=TWO, spoil=lost)
    assert [len(o.replied) for o in outcomes] == [2, 2, 1, 2, 2]
    assert agree(fed, tmp_path)


@both
def test_the_rounded_d_is_published_and_d_u_stays_float32(coding):
    method = small(d_coding=coding)
    (server, state), bits = initial_states(method), int(coding[3:])
    published = None
    for t in range(2):
        state, parts = one_round(method, server, state, t)
        code = method.coding(method.architecture)
        rows = code.decode(parts["discriminators"], method.steps_per_message, published)
        server = method.receive(server, "a", parts)
        published = server["twins"]["a"]["published"]
        own = state["now"]["discriminator"]
        assert np.array_equal(rows[-1], quantize(own, code.sizes, bits))
        assert np.array_equal(rows[-1], published[-1])
        assert not np.array_equal(rows[-1], own)
        assert len(np.unique(rows[-1][: code.sizes[0]])) <= 2**bits - 1


def test_g_steps_against_the_decoded_d_and_d_trains_unrounded():
    """Compare with a plain step of G against the decoded D and against the exact D."""
    method = small(steps_per_message=1, d_coding="int4")
    after, parts = one_round(method, *initial_states(method))
    exact, _ = one_round(small(steps_per_message=1), *initial_states(method))
    own, labels = after["now"]["discriminator"], np.flatnonzero(parts["labels"])
    assert np.array_equal(own, exact["now"]["discriminator"])

    def stepped(vector):
        G = from_vector(method.generator(), after["before"]["generator"]).train()
        D = from_vector(method.discriminator("dcgan:4"), vector)
        z, y = method.noise(int(parts["seed"][0]), 0, labels)
        optimizer = torch.optim.Adam(G.parameters(), method.lr, (0.5, 0.999))
        F.softplus(-D(G(z, y), y)).mean().backward()
        optimizer.step()
        return to_vector(G)

    decoded = method.coding("dcgan:4").round(own)
    for vector, G_u in ((decoded, after["now"]["generator"]), (own, exact["now"]["generator"])):
        assert np.isclose(stepped(vector), G_u, atol=1e-5).mean() > 0.99
    assert np.isclose(stepped(own), after["now"]["generator"], atol=1e-5).mean() < 0.95


def test_fewer_bits_take_fewer_bytes_and_the_float32_cost_is_the_same(tmp_path):
    codings = ("plain", "delta", "int8", "int4")
    found = {w: federate(small(3, d_coding=w, d_width=16), tmp_path / w, indices=TWO)[1][-1] for w in codings}
    up = [sum(found[w].up.values()) for w in codings]
    assert up == sorted(up, reverse=True)
    assert up[2] < 0.3 * up[0]
    assert up[3] < 0.2 * up[0]
    assert len({o.floats_up for o in found.values()}) == 1


@both
def test_bytes_that_are_not_rounded_discriminators_are_refused(coding):
    method = small(d_coding=coding)
    server, state = initial_states(method)
    _, parts = one_round(method, server, state)
    sent = parts["discriminators"]
    nan = np.concatenate([sent[:4], np.frombuffer(np.float32(np.nan).tobytes(), np.uint8), sent[8:]])
    wrong = {"cut": sent[:-1], "longer": np.append(sent, 0), "scale": nan, "nothing": sent[:0], "zeros": 0 * sent}
    for bad in wrong.values():
        with pytest.raises(Malformed):
            method.receive(server, "a", {**parts, "discriminators": bad.astype(np.uint8)})
    with pytest.raises(Malformed):  # another architecture
        method.receive(server, "a", {**parts, "architecture": np.frombuffer(b"dcgan:5", np.uint8)})
    assert method.receive(server, "a", parts)["twins"]["a"]["steps"] == 2


def test_a_client_may_change_its_discriminator_between_messages():
    method = small(d_coding="int8")
    server, state = initial_states(method)
    for t, width in enumerate((4, 6, 6, 4)):
        state, parts = one_round(replace(method, d_width=width), server, state, t)
        server = method.receive(server, "a", parts)
    assert np.array_equal(server["twins"]["a"]["generator"], state["now"]["generator"])


@both
def test_rounding_is_not_reported_as_private(coding):
    """Rounding is deterministic: replacing one image either always changes the message or never."""
    method = small(d_coding=coding, batch_size=24)
    assert method.mechanism is None
    assert claim(method.mechanism, method.max_replies, method.delta, "os")["says"].startswith("not private")
    data, (server, state) = digits().train.take(np.arange(24)), initial_states(method)
    first, again = (one_round(method, server, state, data=data)[1]["discriminators"] for _ in range(2))
    other = one_round(method, server, state, data=digits().train.take(np.r_[24, 1:24]))[1]["discriminators"]
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_rounding_does_not_change_the_claim_of_a_private_run(tmp_path):
    method = quick("psfedgan, dp-sgd", d_coding="int8", clients=2)
    assert method.mechanism == quick("psfedgan, dp-sgd", clients=2).mechanism
    fed, outcomes, traffic = federate(method, tmp_path, indices=TWO)
    assert [len(o.replied) for o in outcomes] == [2, 2, 0]
    assert agree(fed, tmp_path)
    assert "labels" not in {p.name for _, data in traffic.replies for p in decode(data).parts}
    assert private_state(tmp_path, "client-0")["now"]["discriminator"].size == vector_size(
        method.discriminator("dcgan:4")
    )


def test_four_bits_still_reveal_whether_an_image_was_present():
    """A white image replaces one of eight; all randomness is new in each trial. The attacker sees the D's only."""
    some = digits().train.take(np.arange(8))
    white = Images(
        np.concatenate([some.pixels[1:], np.full((1, 1, 8, 8), 255, np.uint8)]), np.append(some.labels[1:], 3)
    )
    method, scores = small(d_coding="int4", steps_per_message=20, label_sets="all"), {False: [], True: []}
    for k in range(30):
        server, state, data = initial_states(method)[0], method.client_init("a", Rng((k, 7))), white if k % 2 else some
        message = ServerMessage(0, broadcast_parts(method, server))
        sent = method.client_round(state, message, data, Rng((k, 1)))[1].parts["discriminators"]
        rows = method.coding("dcgan:4").decode(sent, 20, None)
        nets = [from_vector(method.discriminator("dcgan:4"), row) for row in (rows[0], rows[-1])]
        first, last = (float(D(torch.ones(1, 1, 8, 8), torch.tensor([3])).detach()) for D in nets)
        scores[data is white].append(last - first)
    auc = np.mean([a > b for a in scores[True] for b in scores[False]])
    assert auc > 0.85
