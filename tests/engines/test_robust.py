"""Median and trimmed mean in place of the mean, and reports of outliers."""

from dataclasses import replace

import numpy as np
import pytest
import tomli_w
from scipy.stats import trim_mean

import vitrail
from tests.federation import federate, quick, same, shares
from vitrail.engines.replies import CheckedPart
from vitrail.engines.sums import FixedPointSum, ReplyNorms, RobustSum, trimmed_mean
from vitrail.experiment import settings as config
from vitrail.experiment.plan import prepare
from vitrail.experiment.runner import metrics_row
from vitrail.methods.base import PartSpec
from vitrail.utils.errors import VitrailError
from vitrail.utils.renamed import original_settings
from vitrail.wire.message import decode, digest, encode, make_part

DECLARED = {
    "network": PartSpec("sum", "float32", 50, over="weight"),
    "plain": PartSpec("sum", "float32", 7, over="clients"),
    "weight": PartSpec("sum", "float32", 1, least=0),
    "metric.loss": PartSpec("sum", "float32", 1),
}
EACH = {"median": {}, "trimmed_mean": {"trim": 0.2}}


def replies(n, seed=1):
    """Models, and the replies that contain them, multiplied by each client's weight."""
    draw = np.random.default_rng(seed)
    models, plain = draw.normal(size=(n, 50)), draw.normal(size=(n, 7)).astype(np.float32)
    weights = draw.uniform(0.1, 300, n).astype(np.float32)
    arrays = [
        {"network": (m * w).astype(np.float32), "plain": p, "weight": w[None], "metric.loss": p[:1]}
        for m, p, w in zip(models, plain, weights, strict=True)
    ]
    return models, plain, [tuple(CheckedPart(make_part(k, "float32", a), a) for k, a in r.items()) for r in arrays]


def tallied(taken, how, trim=0.2):
    total = RobustSum(DECLARED, how, trim)
    for reply in taken:
        total.add(reply)
    return total.sums(len(taken))


@pytest.mark.parametrize("n", [3, 5, 10, 20])
def test_division_by_the_method_gives_median_and_trimmed_mean(n):
    models, plain, taken = replies(n)
    cut = -(-n // 5)  # 0.2 of the clients, rounded up
    for how, expected in (
        ("median", np.median),
        ("trimmed_mean", lambda a, axis: trim_mean(a, (cut + 1e-6) / n, axis)),
    ):
        sums = tallied(taken, how)
        network = sums.values["network"] / sums.values["weight"][0]
        assert np.allclose(network, expected(models, axis=0), rtol=1e-5, atol=1e-6)
        assert np.allclose(sums.values["plain"] / sums.clients, expected(plain.astype(float), axis=0), rtol=1e-9)
        assert sums.values["metric.loss"][0] / n == pytest.approx(expected(plain[:, 0].astype(float), axis=0))


@pytest.mark.parametrize("how", EACH)
def test_the_order_of_replies_changes_no_bit(how):
    _, _, taken = replies(9)
    a, b = tallied(taken, how), tallied(taken[::-1], how)
    assert all(a.values[k].tobytes() == b.values[k].tobytes() for k in a.values)


def test_a_client_with_zero_weight_does_not_count():
    models, _, taken = replies(4)
    nothing = {"network": np.zeros(50), "plain": np.zeros(7), "weight": np.zeros(1), "metric.loss": np.zeros(1)}
    empty = tuple(CheckedPart(make_part(k, "float32", a), a) for k, a in nothing.items())
    sums = tallied([*taken, empty], "median")
    assert sums.values["weight"].tolist() == [4.0]
    assert np.allclose(sums.values["network"] / 4, np.median(models, axis=0), rtol=1e-5, atol=1e-6)
    assert tallied([empty], "median").values["weight"].tolist() == [0.0]


def test_trimming_removes_a_share_of_clients_and_leaves_at_least_one():
    for n in range(1, 30):
        rows = np.arange(float(n))[:, None]
        rows[-1] = 1e30
        found = float(trimmed_mean(rows, 0.1)[0])
        assert found < 100 or n < 3
    assert trimmed_mean(np.arange(5.0)[:, None], 0.49).tolist() == [2.0]


# -- a client that sends false models ----------------------------------------------------------------------------------


def poisoned(factor):
    """Client-1 multiplies its model; its weight does not change."""

    def spoil(_, client, data):
        if client != "client-1":
            return data
        message = decode(data)
        parts = [
            make_part(p.name, p.codec, np.clip(p.array() * np.float32(factor), -65000, 65000), p.peer)
            if p.codec.startswith("float") and len(p.array()) > 1
            else p
            for p in message.parts
        ]
        return encode(replace(message, parts=tuple(parts)))

    return spoil


def network_after(name, folder, how="mean", **more):
    method = quick(name, clients=5)
    method = replace(method, task=replace(method.task, aggregation=how, trim=0.2))
    fed, outcomes, _ = federate(method, folder, rounds=1, indices=shares(5, 16), **more)
    assert not outcomes[0].void
    assert len(outcomes[0].replied) == 5
    vectors = [fed.server[k] for k in ("network", "generator", "discriminator") if k in fed.server]
    return np.concatenate(vectors).astype(float), outcomes[0]


@pytest.mark.parametrize("name", ["fedavg", "fedgan", "fedgan, dp-sgd", "dpfedgan"])
def test_one_false_client_of_five_ruins_only_the_mean(tmp_path, name):
    honest, _ = network_after(name, tmp_path / "honest")
    ruined, outcome = network_after(name, tmp_path / "mean", spoil=poisoned(-1000))
    far = np.linalg.norm(ruined - honest)
    assert "client-1" in outcome.outliers
    for how in EACH:
        found, _ = network_after(name, tmp_path / how, how, spoil=poisoned(-1000))
        assert np.linalg.norm(found - honest) < far / 30


@pytest.mark.parametrize("how", EACH)
def test_the_model_of_the_server_is_the_median_of_the_replies(tmp_path, how):
    """From the bytes of the replies: each client's model divided by its weight."""
    method = quick("fedgan", clients=5)
    method = replace(method, task=replace(method.task, aggregation=how, trim=0.2))
    own_images = {f"client-{k}": np.arange(k * 30, k * 30 + 8 + 4 * k) for k in range(5)}
    fed, _, traffic = federate(method, tmp_path, rounds=1, indices=own_images)
    returned = [{p.name: p.array().astype(float) for p in decode(r).parts} for _, r in traffic.replies]
    models = np.array([one["generator"] / one["weight"][0] for one in returned])
    expected = np.median(models, axis=0) if how == "median" else trim_mean(models, 0.2001, axis=0)
    assert np.allclose(fed.server["generator"], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("settings", "message_text"),
    [
        ({"method": "prism"}, "part 'mask' is used as a sum"),
        ({"method": "moments"}, "part 'sums' is used as a sum"),
        ({"method": "scaffold"}, "part 'control' is used as a sum"),
        ({"method": "fedgan", "privacy": "dp-fedavg", "epsilon": 9.8}, "is used as a sum"),
        ({"method": "psfedgan"}, "averages no part"),
        ({"method": "fedavg", "clients": 2}, "at least 3 are needed"),
        ({"method": "fedavg", "secagg_threshold": 3}, "secagg_threshold= hides them"),
    ],
)
def test_robust_aggregation_is_refused_where_it_is_wrong_or_useless(tmp_path, settings, message_text):
    chosen = {"data": "digits", "size": 8, "clients": 4, "aggregation": "median", "out": str(tmp_path), **settings}
    with pytest.raises(VitrailError, match=message_text):
        prepare(config.resolve(chosen, {}))


def test_a_run_with_the_mean_has_the_run_id_of_version_0_1_0():
    settings = config.resolve("fedavg", {})
    before = {k: v for k, v in config.to_dict(settings).items() if k not in (*config.FREE, "aggregation", "trim")}
    text = tomli_w.dumps(dict(sorted(original_settings(before).items())))
    assert config.identity(settings, "x") == digest("run", text, "x")
    for changed in ({"aggregation": "median"}, {"aggregation": "trimmed_mean", "trim": 0.3}):
        assert config.identity(config.resolve("fedavg", changed), "x") != config.identity(settings, "x")


# -- outliers -----------------------------------------------------------------------------------------------------------


def test_only_a_false_client_is_reported_as_an_outlier(tmp_path):
    for name in ("fedavg", "fedgan", "moments", "gswgan"):
        method = quick(name, clients=5)
        _, (outcome, *_), _ = federate(method, tmp_path / name, rounds=1, indices=shares(5, 16))
        assert outcome.outliers == {}
        assert "outliers" not in metrics_row(outcome, 1.0)
    _, outcome = network_after("fedavg", tmp_path / "false", spoil=poisoned(100))
    assert list(metrics_row(outcome, 1.0)["outliers"]) == ["client-1"]
    assert "the norm of network is" in outcome.outliers["client-1"]


def test_reply_norms_store_a_few_numbers_per_client():
    _, _, taken = replies(50)
    norms = ReplyNorms(DECLARED)
    for k, reply in enumerate(taken):
        norms.add(f"client-{k}", reply)
    assert sum(len(by_client) for by_client in norms.norms.values()) == 3 * 50
    assert all(type(x) is float for by_client in norms.norms.values() for x in by_client.values())


def test_the_mean_is_unchanged_to_the_bit(tmp_path):
    _, _, taken = replies(5)
    total = FixedPointSum(DECLARED, 5)
    for reply in taken:
        total.add(reply)
    exact = sum(np.rint(r[0].array * 2.0**43).astype(np.int64) for r in taken) / 2.0**43
    assert (total.sums(5).values["network"] == exact).all()
    a, *_ = federate(quick("fedavg"), tmp_path / "a", rounds=1)
    b, *_ = federate(quick("fedavg"), tmp_path / "b", rounds=1, reverse=True)
    assert same(a.server, b.server)


def test_a_run_is_trained_with_the_median_end_to_end(tmp_path):
    made = {}
    for how in ("mean", "median"):
        run = vitrail.train(
            "fedavg", data="digits", size=8, clients=4, rounds=2, local_steps=2, grids=0, eval_every=0, workers=1,
            aggregation=how, out=str(tmp_path / how),
        )  # fmt: skip
        made[how] = (run.folder / "model.safetensors").read_bytes()
        assert len(run.rows) == 2
    assert made["mean"] != made["median"]
