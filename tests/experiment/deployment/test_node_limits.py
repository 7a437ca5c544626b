"""The owner's policy and budget at a node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.experiment.deployment.nodes import SHARE, images, node, unread
from tests.federation import PRIVATE, QUICK
from vitrail.engines.flower.descriptions import RunSpec
from vitrail.experiment import settings as config
from vitrail.experiment.deployment.specs import offer_spec, spec_of
from vitrail.experiment.plan import prepare
from vitrail.methods import METHODS
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.wire.message import Header, Kind, Message, decode, encode, make_part


@pytest.mark.parametrize(
    "demand", [{"max-epsilon": 1.0}, {"accept": "moments"}, {"require-secagg": True}, {"budget": 2.0}]
)
def test_a_policy_is_checked_before_an_image_is_decoded(plan, tmp_path, demand):
    folder = images(tmp_path / "images", "normal")
    unread(folder / "normal" / "3.png")
    place = {"data": f"folder:{folder}", "home": str(tmp_path / "home")}
    offer = RunSpec(spec_of(plan).settings)  # before the nodes are known
    with pytest.raises(VitrailError, match="its owner's policy refuses this run") as refused:
        node(tmp_path, **place, **demand).describe(offer)
    assert refused.value.public == "refused by the node's policy"
    assert not (tmp_path / "node" / "images.json").exists()
    with pytest.raises(VitrailError, match="cannot be read"):
        node(tmp_path, **place).describe(offer)  # without a policy the images are read


@pytest.mark.parametrize("name", [*METHODS, *PRIVATE, "moments, auto"])
def test_an_offer_of_any_method_is_checked_without_images(name, tmp_path):
    """A policy that accepts the run is followed by reading images, which fails here; nothing fails before."""
    method, private = PRIVATE.get(name, (name.partition(",")[0], {}))
    settings = {
        **QUICK[method],
        **private,
        "clients": 3,
        "rounds": 2,
        "out": "-",
        "noise_source": "os",
        "data": "nodes",
    }
    if name.endswith("auto"):
        settings["features"] = "auto"
    offer = offer_spec(config.resolve(method, settings))
    names = "none,moments,dp-sgd,dp-fedavg,gradient"
    lax = node(tmp_path, data=f"folder:{tmp_path / 'nowhere'}", accept=names)
    with pytest.raises(VitrailError, match="cannot be read"):
        lax.describe(offer)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedgan", {"privacy": "dp-fedavg", "epsilon": 4.0, "noise_source": "os"}),
        ("moments", {"epsilon": 4.0, "noise_source": "seed"}),
        ("psfedgan", {**PRIVATE["psfedgan, dp-sgd"][1], "label_sets": "public", "noise_source": "os"}),
    ],
    ids=["the server's noise", "noise from the seed", "labels without noise"],
)
def test_a_node_with_a_budget_answers_only_what_its_own_noise_protects(method, settings, tmp_path):
    own = {**QUICK[method], **settings, "data": "digits", "size": 8, "clients": 3, "rounds": 1}
    plan = prepare(config.resolve(method, {**own, "out": str(tmp_path / "run")}))
    ours = node(tmp_path, **SHARE, home=str(tmp_path / "home"), budget=1000.0)
    out = plan.method.broadcast(plan.method.server_init(Rng((5,))), "client-1", True)
    parts = tuple(make_part(n, codec, a) for n, (codec, a) in out.parts.items())
    with pytest.raises(VitrailError, match="its owner's policy refuses this run"):
        ours.client(spec_of(plan)).answer(encode(Message(Header(Kind.REQUEST, plan.id, 0, "server"), parts)))
    assert not (tmp_path / "home" / "budgets").exists(), "nothing was charged"


def test_a_refusal_contains_no_number_and_no_name(plan, tmp_path, capfd):
    """Another run has spent most of the budget; amount and name stay with the owner."""
    home = {"home": str(tmp_path / "home"), "budget": 3.0, "budget-name": "scans of ward 7"}
    settings = {**QUICK["moments"], "epsilon": 2.9, "noise_source": "os", "data": "digits", "size": 8, "clients": 3}
    moments = prepare(config.resolve("moments", {**settings, "rounds": 2, "out": str(tmp_path / "run")}))
    spec, ours = spec_of(moments), node(tmp_path, **SHARE, **home)
    request = encode(Message(Header(Kind.REQUEST, moments.id, 0, "server")))
    assert decode(ours.client(spec).answer(request)).header.kind is Kind.REPLY
    ours.describe(spec)  # the run that spent it may continue
    later = replace(spec, id="11" * 16)
    for query in (lambda: ours.describe(replace(later, id="")), lambda: ours.client(later)):
        with pytest.raises(VitrailError) as refused:
            query()
        assert refused.value.public == "refused: privacy budget used up"
    assert not (tmp_path / "node" / "runs" / later.id).exists()
    own = (tmp_path / "node" / "refusals.log").read_text()
    assert own.count("for 'scans of ward 7' is spent up to 2.9") == 2
    assert "scans of ward 7" in capfd.readouterr().err
    assert (tmp_path / "node" / "refusals.log").stat().st_mode & 0o077 == 0


def test_a_round_beyond_the_budget_is_refused_without_a_number(tmp_path):
    settings = {**QUICK["prism"], "privacy": "mask-update", "noise_multiplier": 3.0, "noise_source": "os", "rounds": 3}
    settings |= {"data": "digits", "size": 8, "clients": 3, "out": str(tmp_path / "run")}
    plan = prepare(config.resolve("prism", settings))
    ours = node(tmp_path, **SHARE, home=str(tmp_path / "home"), budget=1.5, **{"budget-name": "scans"})
    server = plan.method.server_init(Rng((5,)))
    replies = []
    for t in range(2):
        server, _ = plan.method.start_round(server, ["client-1"], Rng((5,)))
        out = plan.method.broadcast(server, "client-1", True)
        parts = tuple(make_part(n, codec, a) for n, (codec, a) in out.parts.items())
        request = encode(Message(Header(Kind.REQUEST, plan.id, t, "server"), parts))
        replies.append(decode(ours.client(spec_of(plan)).answer(request)))
    assert [r.header.kind for r in replies] == [Kind.REPLY, Kind.FAILED]
    assert bytes(replies[1].parts[0].array()).decode() == "refused: privacy budget used up"
    assert "its budget of ε = 1.5" in (tmp_path / "node" / "refusals.log").read_text()


def test_a_damaged_budget_is_refused_without_its_name(tmp_path):
    home = tmp_path / "home" / "budgets"
    home.mkdir(parents=True)
    (home / "scans of ward 7.json").write_text("[1]")
    settings = {**QUICK["moments"], "epsilon": 2.9, "noise_source": "os", "data": "digits", "size": 8, "clients": 3}
    moments = prepare(config.resolve("moments", {**settings, "rounds": 2, "out": str(tmp_path / "run")}))
    ours = node(tmp_path, **SHARE, home=str(tmp_path / "home"), budget=3.0, **{"budget-name": "scans of ward 7"})
    with pytest.raises(VitrailError) as refused:
        ours.describe(spec_of(moments))
    assert refused.value.public == "refused by the node's policy"
    assert "scans of ward 7.json is not a ledger" in (tmp_path / "node" / "refusals.log").read_text()


def test_the_log_of_refusals_is_bounded_and_safe_to_print(tmp_path, capfd):
    ours = node(tmp_path)
    for k in range(40):
        ours.log(f"{k} \x1b[31m" + "x" * 3000)
    stored = (tmp_path / "node" / "refusals.log").read_bytes()
    assert len(stored) == 2**16
    assert b" 39  [31m" in stored
    assert "\x1b" not in capfd.readouterr().err


def test_a_node_refuses_private_runs_with_features_trained_on_its_data(tmp_path):
    settings = {
        **QUICK["moments"],
        "features": "vitrail-fashion",
        "data": "digits",
        "size": 8,
        "clients": 3,
        "out": "-",
    }
    spec = spec_of(prepare(config.resolve("moments", settings)))
    (tmp_path / "fashion-mnist").mkdir()
    theirs = node(tmp_path, data=f"folder:{tmp_path}/fashion-mnist")
    with pytest.raises(VitrailError, match="were trained on fashion-mnist") as refused:
        theirs.client(spec)
    assert refused.value.public == "refused by the node's policy"
    open_ = spec_of(prepare(config.resolve("moments", {**settings, "privacy": "none"})))
    assert theirs.client(open_)
