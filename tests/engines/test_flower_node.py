"""A node by itself: what it says, keeps and refuses."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.federation import QUICK
from vitrail import config, state
from vitrail.artifact import save_model
from vitrail.engines.flower.node import Node
from vitrail.engines.flower.terms import Terms
from vitrail.errors import Malformed, VitrailError
from vitrail.methods.base import Model
from vitrail.plan import prepare
from vitrail.privacy.run_ledger import recompute
from vitrail.privacy.statement import check_statement, read_statement
from vitrail.rng import Rng
from vitrail.wire.message import Header, Kind, Message, decode, encode, make_part

SHARE = {"partition": "iid", "partition-id": 1, "num-partitions": 3}


@pytest.fixture
def plan(tmp_path: Path):
    settings = {**QUICK["prism"], "data": "digits", "size": 8, "clients": 3, "rounds": 2, "out": str(tmp_path / "run")}
    return prepare(config.resolve("prism", settings))


def node(tmp_path: Path, **given) -> Node:
    return Node.of({"name": "client-1", "data": "digits", "folder": str(tmp_path / "node"), "device": "cpu", **given})


def test_a_share_of_a_partition_is_that_of_the_simulated_client(plan, tmp_path):
    ours = node(tmp_path, **SHARE)
    described = ours.describe(Terms.of(plan))
    assert (described.shape, described.classes) == (plan.data.shape, plan.data.classes)
    held = ours.client(Terms.of(plan)).pictures()
    assert held.digest() == plan.partition.client(plan.data, 1).digest()
    again = ours.client(Terms.of(plan)).pictures()  # from what was laid out
    assert again.digest() == held.digest()


def test_terms_tell_no_node_of_the_servers_places(plan, tmp_path):
    assert str(tmp_path) not in Terms.of(plan).text()
    assert Terms.read(Terms.of(plan).text()) == Terms.of(plan)


def test_other_terms_under_the_same_id_are_refused(plan, tmp_path):
    terms = Terms.of(plan)
    ours = node(tmp_path, **SHARE)
    ours.client(terms)
    with pytest.raises(VitrailError, match="begun on other terms"):
        ours.client(replace(terms, clients=4))


def answered(plan, tmp_path):
    """A node that answered the first round of a run, and a model of that run."""
    ours = node(tmp_path, **SHARE)
    server = plan.method.server_init(Rng((1,)))
    opened, _ = plan.method.open_round(server, ["client-1"], Rng((2,)))
    parts = plan.method.broadcast(opened, "client-1", True).parts
    request = Message(
        Header(Kind.REQUEST, plan.id, 0, "server"), tuple(make_part(n, c, np.asarray(a)) for n, (c, a) in parts.items())
    )
    assert decode(ours.client(Terms.of(plan)).answer(encode(request))).header.kind is Kind.REPLY
    return ours, model_of(plan, tmp_path / "made.safetensors")


def model_of(plan, path, **changes):
    made = plan.method.products(plan.method.server_init(Rng((1,))))["generator"]
    save_model(path, Model(made.kind, {**made.tree, **changes}), plan.data.classes, {"run": plan.id.hex()})
    return path.read_bytes()


def test_private_files_are_the_owners_and_the_model_is_not(plan, tmp_path):
    ours, made = answered(plan, tmp_path)
    terms = Terms.of(plan)
    ours.describe(terms)
    ours.keep(terms, made)
    place = tmp_path / "node"
    assert (place / "node.key").stat().st_mode & 0o077 == 0
    assert (place / "runs" / terms.id).stat().st_mode & 0o077 == 0
    model = place / "models" / f"{terms.id}.safetensors"
    assert model.read_bytes() == made
    assert model.stat().st_mode & 0o044
    assert not (place / "runs" / terms.id / "pictures").exists()  # nothing of them stays beyond the run


def test_a_node_signs_how_often_it_answered_and_the_ledger_is_held_to_it(plan, tmp_path):
    ours, made = answered(plan, tmp_path)
    terms = Terms.of(plan)
    entry = read_statement(ours.keep(terms, made), "client-1", terms.id)
    facts = check_statement(entry)
    assert (facts["answers"], facts["mechanism"]) == (1, "none")
    assert entry["node_key"] == ours.describe(terms).key
    with pytest.raises(Malformed, match="not signed by the key"):
        check_statement({**entry, "statement": entry["statement"].replace('"answers": 1', '"answers": 0')})
    for other in (("client-2", terms.id), ("client-1", "00" * 16)):
        with pytest.raises(Malformed, match="another client or run"):
            read_statement(ours.keep(terms, made), *other)
    opening = {"kind": "opening", "private": False}
    asked = {"kind": "round", "round": 0, "asked": ["client-1"]}
    said = {"kind": "statement", "client": "client-1", **entry}
    assert recompute([opening, asked, said]) is False
    with pytest.raises(Malformed, match="client-1 states that it answered 1 times; the ledger has asked it 0 times"):
        recompute([opening, said])


def test_a_node_stores_no_model_of_a_run_that_it_never_answered(plan, tmp_path):
    ours, terms = node(tmp_path, **SHARE), Terms.of(plan)
    made = model_of(plan, tmp_path / "made.safetensors")
    with pytest.raises(VitrailError, match="has not answered"):
        ours.keep(terms, made)
    ours.client(terms)  # asked, but it gave no answer
    with pytest.raises(VitrailError, match="has not answered"):
        ours.keep(terms, made)
    assert not (tmp_path / "node" / "models").exists()


def test_a_node_stores_no_model_on_other_terms_than_it_answered(plan, tmp_path):
    ours, made = answered(plan, tmp_path)
    with pytest.raises(VitrailError, match="begun on other terms"):
        ours.keep(replace(Terms.of(plan), clients=4), made)
    assert not (tmp_path / "node" / "models").exists()


def test_a_node_stores_one_model_of_a_run_and_not_another(plan, tmp_path):
    ours, made = answered(plan, tmp_path)
    terms = Terms.of(plan)
    ours.keep(terms, made)
    ours.keep(terms, made)  # a server that was restarted delivers it again
    with pytest.raises(VitrailError, match="another model"):
        ours.keep(terms, model_of(plan, tmp_path / "other.safetensors", seed=1))
    assert (tmp_path / "node" / "models" / f"{terms.id}.safetensors").read_bytes() == made


def padded(path, raw):
    """A model file with two megabytes that belong to no network."""
    path.write_bytes(raw)
    tree = state.load(path)
    state.save(path, {**tree, "about": {**tree["about"], "more": bytes(2 * 2**20)}})
    return path.read_bytes()


@pytest.mark.parametrize(
    ("spoilt", "says"),
    [
        (lambda plan, path: bytes(10_000), "damaged or not a vitrail file"),
        (lambda plan, path: model_of(plan, path, width=2.0), "the model has width = 2.0, the run 1.0"),
        (lambda plan, path: model_of(plan, path, shape=[1, 16, 16]), "the model has shape"),
        (lambda plan, path: model_of(plan, path, mask=np.zeros(2**20, np.uint8)), "does not fit together"),
        (lambda plan, path: padded(path, model_of(plan, path)), "of which its network takes"),
    ],
)
def test_a_node_stores_only_a_model_of_the_size_that_the_run_has(plan, tmp_path, spoilt, says):
    ours, _ = answered(plan, tmp_path)
    with pytest.raises(VitrailError, match=says):
        ours.keep(Terms.of(plan), spoilt(plan, tmp_path / "bad.safetensors"))
    assert not (tmp_path / "node" / "models").exists()


def test_a_nodes_owner_may_choose_its_discriminator(tmp_path):
    settings = {
        **QUICK["psfedgan"],
        "data": "digits",
        "size": 8,
        "clients": 3,
        "rounds": 2,
        "out": str(tmp_path / "run"),
    }
    terms = Terms.of(prepare(config.resolve("psfedgan", settings)))
    chosen = node(tmp_path, **SHARE, discriminator="dense:6").client(terms).method
    assert chosen.architecture == "dense:6"
    assert node(tmp_path, **SHARE).client(terms).method.architecture == f"dcgan:{QUICK['psfedgan']['d_width']}"
    with pytest.raises(VitrailError, match="'resnet:6' is not known"):
        node(tmp_path, **SHARE, discriminator="resnet:6").client(terms)


def test_two_processes_that_answer_one_request_say_the_same(tmp_path):
    """Flower may give up a process that is only slow, and the server asks again: that is no second draw of the noise."""
    settings = {**QUICK["moments"], "privacy": "moments", "entropy": "os", "data": "digits", "size": 8, "clients": 3}
    plan = prepare(config.resolve("moments", {**settings, "out": str(tmp_path / "run")}))
    ours, terms = node(tmp_path, **SHARE), Terms.of(plan)
    request = encode(Message(Header(Kind.REQUEST, plan.id, 0, "server")))
    with ThreadPoolExecutor(2) as both:
        said = list(both.map(lambda _: ours.client(terms).answer(request), range(2)))
    assert decode(said[0]).header.kind is Kind.REPLY
    assert said[0] == said[1]


def test_why_pictures_cannot_be_read_stays_on_the_node(plan, tmp_path, capfd):
    ours = node(tmp_path, data=f"folder:{tmp_path / 'nowhere'}")
    with pytest.raises(VitrailError) as refused:
        ours.describe(Terms.of(plan))
    assert str(tmp_path) not in str(refused.value)
    assert str(tmp_path / "nowhere") in capfd.readouterr().err


def test_damaged_private_state_is_reported_without_its_place(plan, tmp_path):
    ours = node(tmp_path, **SHARE)
    client = ours.client(Terms.of(plan))
    client.path.write_bytes(b"damaged")
    reply = decode(client.answer(encode(Message(Header(Kind.REQUEST, plan.id, 0, "server")))))
    said = bytes(reply.parts[0].array()).decode()
    assert "damaged" in said
    assert str(tmp_path) not in said


def test_with_entropy_of_the_system_a_node_draws_from_its_own_secret(plan, tmp_path):
    terms = Terms.of(plan)
    seeded = node(tmp_path, **SHARE).client(terms).rng
    own = replace(terms, id="11" * 16, settings={**terms.settings, "entropy": "os"})
    first, second = (node(tmp_path / k, **SHARE).client(own).rng for k in "ab")
    assert len({seeded.seed(), first.seed(), second.seed()}) == 3
    assert node(tmp_path / "a", **SHARE).client(own).rng == first


def test_a_node_that_lacks_a_label_may_name_all(plan, tmp_path):
    for i in range(20):
        folder = tmp_path / "pictures" / "pneumonia"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), i, np.uint8)).save(folder / f"{i}.png")
    ours = node(tmp_path, data=f"folder:{tmp_path / 'pictures'}", classes="normal, pneumonia")
    described = ours.describe(Terms.of(plan))
    assert described.classes == ("normal", "pneumonia")
    terms = replace(Terms.of(plan), classes=described.classes)
    labels = ours.client(terms).pictures().labels
    assert labels is not None
    assert set(labels.tolist()) == {1}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"name": ""}, "lacks name"),
        ({"bugdet": 3}, "bugdet is no key of a node config; did you mean budget"),
        ({"budget": "much"}, "holds a wrong value"),
    ],
)
def test_a_wrong_node_config_says_what_is_wrong(tmp_path, given, says):
    with pytest.raises(VitrailError, match=says):
        node(tmp_path, **given)


def test_without_flower_the_setting_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    settings = {**QUICK["prism"], "data": "digits", "size": 8, "engine": "flower", "out": str(tmp_path / "x")}
    with pytest.raises(VitrailError, match=r'pip install "vitrail\[flower\]"'):
        prepare(config.resolve("prism", settings))
    assert not (tmp_path / "x").exists()


def test_the_client_app_loads_no_torch_until_it_trains():
    import subprocess

    code = "import json, sys, vitrail.engines.flower.client; print(json.dumps(list(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    heavy = ("torch", "sklearn", "matplotlib", "torchmetrics", "opacus", "flwr_datasets", "datasets", "scipy", "pandas")
    assert not set(heavy) & set(loaded)
