"""One-shot moments: what clients release, with which noise, and what the server refuses."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.federation import QUICK, digits, federate, quick, shares
from vitrail import load, train
from vitrail.experiment import settings as config
from vitrail.methods import masks, released_sums
from vitrail.methods.base import Model, ServerMessage, Sums, Task
from vitrail.methods.released_sums import feature_summary
from vitrail.models.model_file import check_model
from vitrail.privacy.accounting import epsilon
from vitrail.privacy.feature_sum_messages import pack, unpack
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.rng import Rng
from vitrail.wire.message import decode, encode, make_part


def build(secure=0, clients=3, **settings):
    chosen = {
        "local_steps": 2,
        "batch_size": 10,
        "features": "vitrail-fashion",
        "pool_size": 2,
        "rounds": 3,
        "network": "masked",
        **settings,
    }
    chosen.setdefault("generator", "smooth" if chosen["network"] == "dense" else "small")
    return config.build_method(
        config.resolve("moments", chosen), Task((1, 8, 8), 10, 3, clients, secagg_threshold=secure)
    )


def test_clients_reply_once_and_the_server_trains_alone(tmp_path):
    method = build()
    fed, results, traffic = federate(method, tmp_path)
    assert [o.requested for o in results] == [3, 0, 0]
    assert len(traffic.replies) == 3
    assert fed.server["t"] == 3
    assert fed.server["optimizer"]["step"] == 4


def test_without_noise_any_partition_gives_the_same_model_bit_for_bit(tmp_path, monkeypatch):
    """Each image's row is computed alone here, because batches may change its last bit."""

    def one_by_one(summary, pixels, labels, classes):
        sums = np.zeros((classes, 1 + 2 * summary.d), np.int64)
        for x, y in zip(pixels, labels, strict=True):
            sums[y] += summary.rows(x[None])[0]
        return sums

    monkeypatch.setattr(released_sums, "class_sums", one_by_one)
    monkeypatch.setattr(released_sums, "cached", lambda kind, key, compute: compute())
    labels = digits().train.labels[:72]
    sorted_by_class = np.argsort(labels, kind="stable")
    splits = {
        "iid": shares(),
        "by class": {f"client-{k}": sorted_by_class[24 * k : 24 * k + 24] for k in range(3)},
        "uneven": {"client-0": np.arange(1), "client-1": np.arange(1, 70), "client-2": np.arange(70, 72)},
    }
    states = {name: federate(build(privacy="none"), tmp_path / name, indices=h)[0].server for name, h in splits.items()}
    for name in ("by class", "uneven"):
        assert (states[name]["sums"] == states["iid"]["sums"]).all()
        assert (states[name]["s"] == states["iid"]["s"]).all()


def test_a_client_sends_its_sums_with_the_noise_of_the_mechanism(tmp_path):
    quiet, loud = build(privacy="none"), build(epsilon=5.0)
    exact = federate(quiet, tmp_path / "a", rounds=1)[0].server["sums"]
    noisy = federate(loud, tmp_path / "b", rounds=1)[0].server["sums"]
    sigma = loud.mechanism.sigma * feature_summary(loud).grid
    assert np.std(noisy - exact) == pytest.approx(sigma * math.sqrt(3), rel=0.05)
    assert epsilon([(loud.mechanism.noise, 1)], 1e-5) == pytest.approx(5.0, rel=1e-4)


def test_a_repeated_request_gets_the_same_bits_not_new_noise(tmp_path):
    method = build()
    _, results, traffic = federate(
        method, tmp_path, rounds=2, quorum=4
    )  # more than there are clients: every round is void
    assert all(o.void for o in results)
    sent = [[p.payload for p in decode(data).parts] for c, data in traffic.replies if c == "client-0"]
    assert len(sent) == 2
    assert sent[0] == sent[1]


def test_secure_sums_have_the_noise_of_one_release_in_total(tmp_path):
    exact = federate(build(privacy="none"), tmp_path / "a", rounds=1)[0].server["sums"]
    method = build(secure=3, epsilon=5.0)
    fed, (result, *_), _ = federate(method, tmp_path / "b", rounds=1)
    assert not result.void, result
    error = fed.server["sums"] - exact
    assert np.std(error) == pytest.approx(method.sigma, rel=0.05)
    assert method.share == pytest.approx(method.sigma / math.sqrt(3))
    assert "only the total" in method.mechanism.leaves


def test_noise_shares_are_calibrated_to_the_honest_clients():
    some_honest, all_honest = build(secure=3, max_colluding=1, epsilon=5.0), build(secure=3, epsilon=5.0)
    assert some_honest.sigma == all_honest.sigma
    assert some_honest.share == pytest.approx(some_honest.sigma / math.sqrt(2))
    with pytest.raises(VitrailError, match="no honest client would be left"):
        build(secure=3, max_colluding=3, epsilon=5.0).reply_spec()


def test_without_labels_the_sensitivity_is_two():
    chosen = config.resolve("moments", {"features": "vitrail-fashion"})
    method = config.build_method(chosen, Task((1, 8, 8), 0, 3, 3))
    assert method.mechanism.sensitivity == 2.0


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"epsilon": 1e-6}, "epsilon=1e-06 .*0.001, "),
        ({"privacy": "none", "epsilon": 2.0}, "choose privacy=moments"),
    ],
)
def test_an_epsilon_that_no_noise_achieves_is_refused_with_a_remedy(settings, remedy):
    with pytest.raises(VitrailError, match=remedy):
        build(**settings).reply_spec()


def test_the_method_is_private_by_default():
    assert quick("moments").mechanism is not None


def test_secure_sums_are_clipped_at_max_per_class_images():
    """A client with 40 images of one class, below and above the limit."""
    some = digits().train.take(np.flatnonzero(digits().train.labels == 3)[:40])
    for most, counted in ((64, 40), (8, 8)):
        method = quick("moments", privacy="none", max_per_class=most)
        method = replace(method, task=replace(method.task, secagg_threshold=2))
        _, reply = method.client_round({}, ServerMessage(0, {}), some, Rng((1,)))
        rows = reply.parts["sums"].reshape(10, -1)
        assert rows[3, 0] / feature_summary(method).count == counted
        assert np.abs(rows).max() <= method.largest <= method.reply_spec()["sums"].limit


# -- Trained weights instead of a mask ------------------------------------------------------------------------------


def test_dense_weights_are_the_plain_average_of_adams_iterates(tmp_path):
    """Against a plain training loop, over two server rounds."""
    method = build(network="dense", privacy="none", ema_decay=0.9, rounds=3, dense_lr=0.05, precision="float32")
    fed, *_ = federate(method, tmp_path, rounds=1)
    server = first = fed.server
    net, matched, steps = masks.dense_network(method, server["weights"]), method.loss(server), 0
    average = {name: w.detach().clone() for name, w in net.named_parameters()}
    adam = torch.optim.Adam(net.parameters(), betas=(0.5, 0.999))
    for t in (1, 2):
        server = method.finish_round(server, Sums({}, 0), Rng((t,)))
        draw = Rng((t,)).child("training").torch()
        adam.param_groups[0]["lr"] = 0.05 * (0.5 + 0.5 * math.cos(math.pi * t / 3))
        for i in range(2):
            z, y = masks.sample_inputs(method, i, net.z, matched.present, draw)
            adam.zero_grad()
            matched(net(z, y), y).backward()
            adam.step()
            decay = min(0.9, (1 + steps) / (10 + steps))
            for name, w in net.named_parameters():
                average[name] = decay * average[name] + (1 - decay) * w.detach()
            steps += 1
    stored = method.export_models(server)["generator"].tree["weights"]
    for name, w in average.items():
        assert torch.allclose(server["average"][name], w, atol=1e-4)
        assert torch.allclose(stored[name].float(), w, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(server["average"]["first.weight"], first["weights"]["first.weight"], atol=1e-2)


def test_a_dense_model_is_loaded_shown_and_samples_the_same_images(tmp_path):
    run = train(
        "moments",
        data=digits(),
        clients=3,
        rounds=2,
        out=str(tmp_path / "run"),
        **{**QUICK["moments"], "network": "dense"},
    )
    again = load(run.folder)
    assert again.kind == "dense"
    assert torch.equal(again.sample(20, label=3), run.generator.sample(20, label=3))


def test_dense_weights_of_another_width_are_refused(tmp_path):
    method = build(network="dense")
    fed, *_ = federate(method, tmp_path, rounds=1)
    model = method.export_models(fed.server)["generator"]
    with pytest.raises(Malformed, match="not those of the network that it names"):
        check_model(Model("dense", {**model.tree, "width": 2.0}), ["0"] * 10)
    with pytest.raises(Malformed, match="width"):
        check_model(Model("dense", {**model.tree, "width": 1e9}), ["0"] * 10)


# -- Clients that send false sums -----------------------------------------------------------------------------------


def client_1_sends(method, change):
    """Replace the sums (classes, 1 + 2d) that client-1 sends by `change` of them."""

    def spoil(_, client, data):
        if client != "client-1":
            return data
        message = decode(data)
        sums = unpack(message.parts[0].array(), method.numbers).reshape(method.kinds, -1)
        return encode(replace(message, parts=(make_part("sums", "bytes", pack(change(sums), method.sigma)),)))

    return spoil


def of_images(n, part):
    """Return a change of sums: n times as many images in the count, in the features, or in both."""

    def change(sums):
        out = sums.copy()
        out[:, {"count": slice(0, 1), "features": slice(1, None), "both": slice(None)}[part]] *= n
        return out

    return change


FALSE_SUMS = {
    "sums 1000 times as large": of_images(1000, "both"),
    "features 1000 times as large": of_images(1000, "features"),
    "a count of a million": lambda sums: np.hstack([sums[:, :1] * 0 + 10**9, sums[:, 1:]]),
    "negative features": lambda sums: np.hstack([sums[:, :1], -30 * np.abs(sums[:, 1:]) - 10**6]),
    "one feature of a million images": lambda sums: np.hstack([sums[:, :-1], sums[:, -1:] + 10**10]),
    "all images in every class": lambda sums: np.repeat(sums.sum(0, keepdims=True), 10, 0),
}


@pytest.mark.parametrize("change", FALSE_SUMS)
@pytest.mark.parametrize("settings", [{"privacy": "none"}, {"epsilon": 9.8}])
def test_impossible_sums_exclude_the_client_that_sends_them(tmp_path, settings, change):
    method = build(**settings)
    method = replace(method, task=replace(method.task, images=24))
    fed, (result, *_), _ = federate(method, tmp_path / "a", rounds=1, spoil=client_1_sends(method, FALSE_SUMS[change]))
    assert result.replied == ["client-0", "client-2"]
    assert result.excluded["client-1"].startswith("reply refused: it")
    assert not result.void
    others = {name: data for name, data in shares().items() if name != "client-1"}
    alone, *_ = federate(method, tmp_path / "b", rounds=1, indices=others)
    assert (fed.server["sums"] == alone.server["sums"]).all()


def test_in_deployment_max_per_class_bounds_the_counts_of_a_client(tmp_path):
    """In deployment the server does not know the number of images of a client."""
    change = of_images(1000, "both")
    reasons = {}
    for most in (16_000, 50):
        method = build(privacy="none", max_per_class=most)
        _, (result, *_), _ = federate(method, tmp_path / str(most), rounds=1, spoil=client_1_sends(method, change))
        reasons[most] = result.excluded.get("client-1", "")
    assert reasons[16_000] == ""
    assert "images of one class; at most 50 are accepted" in reasons[50]


@pytest.mark.parametrize("settings", [{"epsilon": 0.2}, {"epsilon": 1.0}, {"epsilon": 9.8}, {"privacy": "none"}])
@pytest.mark.parametrize("labels", [10, 0])
def test_honest_sums_are_never_refused(settings, labels):
    """Including where the bound is tightest, and where all images are of one class."""
    for data in (
        digits().train.take(np.arange(24)),
        digits().train.take(np.flatnonzero(digits().train.labels == 3)[:24]),
    ):
        method = build(**settings)
        method = replace(method, task=replace(method.task, images=24, classes=labels))
        for seed in range(25 if method.sigma else 1):
            _, reply = method.client_round({}, ServerMessage(0, {}), data, Rng((seed,)))
            assert method.unpacked(reply.parts["sums"]).size == method.numbers
