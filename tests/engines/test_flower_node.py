"""A node by itself: what it says, keeps and refuses."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
from PIL import Image

from tests.engines.descriptions import GOOD, NASTY
from tests.federation import QUICK
from vitrail import config
from vitrail.engines.flower.node import Description, Node
from vitrail.engines.flower.terms import Terms
from vitrail.errors import VitrailError
from vitrail.plan import prepare
from vitrail.wire.message import Header, Kind, Message, decode, encode

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
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


def test_a_description_is_read_as_it_was_sent(plan, tmp_path):
    described = node(tmp_path, **SHARE).describe(Terms.of(plan))
    assert Description.read(described.text()) == described
    assert Description.read(json.dumps({**GOOD, "name": "Süd [red]"})).name == "Süd [red]"


@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY)
def test_a_description_that_no_honest_node_sends_is_refused_with_a_printable_reason(text):
    with pytest.raises(VitrailError) as refused:
        Description.read(text)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 700


@drawn(st.sampled_from(sorted(GOOD)), _JSON)
def test_any_value_in_a_description_is_checked_or_refused(field, value):
    try:
        read = Description.read(json.dumps({**GOOD, field: value}))
    except VitrailError:
        return
    assert json.loads(read.text()) == {**GOOD, field: value}
    assert all(1 <= len(text.encode()) <= 255 for text in (read.name, *read.classes))
    assert len(bytes.fromhex(read.key)) == 32
    assert len(read.shape) == 3


def test_terms_tell_no_node_of_the_servers_places(plan, tmp_path):
    assert str(tmp_path) not in Terms.of(plan).text()
    assert Terms.read(Terms.of(plan).text()) == Terms.of(plan)


def test_other_terms_under_the_same_id_are_refused(plan, tmp_path):
    terms = Terms.of(plan)
    ours = node(tmp_path, **SHARE)
    ours.client(terms)
    with pytest.raises(VitrailError, match="begun on other terms"):
        ours.client(replace(terms, clients=4))


def test_private_files_are_the_owners_and_the_model_is_not(plan, tmp_path):
    terms, ours = Terms.of(plan), node(tmp_path, **SHARE)
    client = ours.client(terms)
    client.pictures()
    ours.describe(terms)
    ours.keep(terms, b"a model")
    place = tmp_path / "node"
    assert (place / "node.key").stat().st_mode & 0o077 == 0
    assert (place / "runs" / terms.id).stat().st_mode & 0o077 == 0
    model = place / "models" / f"{terms.id}.safetensors"
    assert model.read_bytes() == b"a model"
    assert model.stat().st_mode & 0o044
    assert not (place / "runs" / terms.id / "pictures").exists()  # nothing of them stays beyond the run


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
