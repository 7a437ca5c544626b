"""A node by itself: what it says, keeps and refuses."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
from PIL import Image

from tests.engines.flower.descriptions import GOOD, NASTY
from tests.federation import PRIVATE, QUICK
from vitrail.engines.flower.description import Description
from vitrail.engines.flower.node import Node
from vitrail.engines.flower.run_spec import RunSpec
from vitrail.engines.flower.server import deployed
from vitrail.experiment import settings as config
from vitrail.experiment.plan import prepare
from vitrail.methods import METHODS
from vitrail.methods.base import Model
from vitrail.models.model_file import save_model
from vitrail.privacy.ledger_checks import recompute
from vitrail.privacy.statement import check_statement, read_statement
from vitrail.utils import state
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.keys import Key
from vitrail.utils.rng import Rng
from vitrail.wire.message import Header, Kind, Message, decode, encode, make_part

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
    described = ours.describe(RunSpec.of(plan))
    assert (described.shape, described.classes) == (plan.data.shape, plan.data.classes)
    held = ours.client(RunSpec.of(plan)).pictures()
    assert held.digest() == plan.partition.client(plan.data, 1).digest()
    again = ours.client(RunSpec.of(plan)).pictures()  # from what was laid out
    assert again.digest() == held.digest()


def test_a_description_is_read_as_it_was_sent(plan, tmp_path):
    described = node(tmp_path, **SHARE).describe(RunSpec.of(plan))
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
    assert str(tmp_path) not in RunSpec.of(plan).text()
    assert RunSpec.read(RunSpec.of(plan).text()) == RunSpec.of(plan)


def test_other_terms_under_the_same_id_are_refused(plan, tmp_path):
    terms = RunSpec.of(plan)
    ours = node(tmp_path, **SHARE)
    ours.client(terms)
    with pytest.raises(VitrailError, match="begun on other terms"):
        ours.client(replace(terms, clients=4))


def answered(plan, tmp_path):
    """A node that answered the first round of a run, and a model of that run."""
    ours = node(tmp_path, **SHARE)
    server = plan.method.server_init(Rng((1,)))
    opened, _ = plan.method.start_round(server, ["client-1"], Rng((2,)))
    parts = plan.method.broadcast(opened, "client-1", True).parts
    request = Message(
        Header(Kind.REQUEST, plan.id, 0, "server"), tuple(make_part(n, c, np.asarray(a)) for n, (c, a) in parts.items())
    )
    assert decode(ours.client(RunSpec.of(plan)).answer(encode(request))).header.kind is Kind.REPLY
    return ours, model_of(plan, tmp_path / "made.safetensors")


def model_of(plan, path, **changes):
    made = plan.method.export_models(plan.method.server_init(Rng((1,))))["generator"]
    save_model(path, Model(made.kind, {**made.tree, **changes}), plan.data.classes, {"run": plan.id.hex()})
    return path.read_bytes()


def test_private_files_are_the_owners_and_the_model_is_not(plan, tmp_path):
    ours, made = answered(plan, tmp_path)
    terms = RunSpec.of(plan)
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
    terms = RunSpec.of(plan)
    key = bytes.fromhex(ours.describe(terms).key)
    raw = ours.keep(terms, made)
    entry = read_statement(raw, "client-1", terms.id, key, 1)
    facts = check_statement(entry)
    assert (facts["answers"], facts["mechanism"]) == (1, "none")
    with pytest.raises(Malformed, match="not signed by the key"):
        check_statement({**entry, "statement": entry["statement"].replace('"answers": 1', '"answers": 0')})
    for other in (("client-2", terms.id, key), ("client-1", "00" * 16, key), ("client-1", terms.id, bytes(32))):
        with pytest.raises(Malformed, match="another client, run or key"):
            read_statement(raw, *other, 1)
    with pytest.raises(Malformed, match="states 1 answers and had 0 requests"):
        read_statement(raw, "client-1", terms.id, key, 0)
    opening = {"kind": "opening", "private": False, "says": "not private", "run": terms.id}
    asked = {"kind": "round", "round": 0, "asked": ["client-1"]}
    said = {"kind": "statement", "client": "client-1", **entry}
    assert recompute([opening, asked, said]) is False
    with pytest.raises(Malformed, match="client-1 states 1 answers; the ledger records 0 requests to it"):
        recompute([opening, said])
    with pytest.raises(Malformed, match="of another client or run"):
        recompute([{**opening, "run": "00" * 16}, asked, said])


@pytest.mark.parametrize(
    "lie",
    [
        {"mechanism": "\x1b[2J"},
        {"answers": True},
        {"answers": -1},
        {"more": 1},
        {"mechanism": "dp-sgd"},
        {"client": 3},
    ],
)
def test_a_signed_statement_with_other_fields_than_one_has_is_refused(lie):
    key = Key(bytes(32))
    facts = {"client": "north", "run": "00", "answers": 1, "mechanism": "none", **lie}
    text = json.dumps(facts)
    signature = key.sign(b"node statement", text.encode()).hex()
    raw = json.dumps({"statement": text, "node_key": key.public.hex(), "node_signature": signature}).encode()
    with pytest.raises(Malformed, match="does not have the fields"):
        read_statement(raw, "north", "00", key.public, 5)


def test_a_node_stores_no_model_of_a_run_that_it_never_answered(plan, tmp_path):
    ours, terms = node(tmp_path, **SHARE), RunSpec.of(plan)
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
        ours.keep(replace(RunSpec.of(plan), clients=4), made)
    assert not (tmp_path / "node" / "models").exists()


def test_a_node_stores_one_model_of_a_run_and_not_another(plan, tmp_path):
    ours, made = answered(plan, tmp_path)
    terms = RunSpec.of(plan)
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
        ours.keep(RunSpec.of(plan), spoilt(plan, tmp_path / "bad.safetensors"))
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
    terms = RunSpec.of(prepare(config.resolve("psfedgan", settings)))
    chosen = node(tmp_path, **SHARE, discriminator="dense:6").client(terms).method
    assert chosen.architecture == "dense:6"
    assert node(tmp_path, **SHARE).client(terms).method.architecture == f"dcgan:{QUICK['psfedgan']['d_width']}"
    with pytest.raises(VitrailError, match="'resnet:6' is not known"):
        node(tmp_path, **SHARE, discriminator="resnet:6").client(terms)


def test_two_processes_that_answer_one_request_say_the_same(tmp_path):
    """Flower may give up a process that is only slow, and the server asks again: that is no second draw of the noise."""
    settings = {
        **QUICK["moments"],
        "privacy": "moments",
        "noise_source": "os",
        "data": "digits",
        "size": 8,
        "clients": 3,
    }
    plan = prepare(config.resolve("moments", {**settings, "out": str(tmp_path / "run")}))
    ours, terms = node(tmp_path, **SHARE), RunSpec.of(plan)
    request = encode(Message(Header(Kind.REQUEST, plan.id, 0, "server")))
    with ThreadPoolExecutor(2) as both:
        said = list(both.map(lambda _: ours.client(terms).answer(request), range(2)))
    assert decode(said[0]).header.kind is Kind.REPLY
    assert said[0] == said[1]


def test_why_pictures_cannot_be_read_stays_on_the_node(plan, tmp_path, capfd):
    ours = node(tmp_path, data=f"folder:{tmp_path / 'nowhere'}")
    with pytest.raises(VitrailError) as refused:
        ours.describe(RunSpec.of(plan))
    assert str(tmp_path) not in str(refused.value)
    assert str(tmp_path / "nowhere") in capfd.readouterr().err


def test_damaged_private_state_is_reported_without_its_place(plan, tmp_path):
    ours = node(tmp_path, **SHARE)
    client = ours.client(RunSpec.of(plan))
    client.path.write_bytes(b"damaged")
    reply = decode(client.answer(encode(Message(Header(Kind.REQUEST, plan.id, 0, "server")))))
    said = bytes(reply.parts[0].array()).decode()
    assert "damaged" in said
    assert str(tmp_path) not in said


def test_with_entropy_of_the_system_a_node_draws_from_its_own_secret(plan, tmp_path):
    terms = RunSpec.of(plan)
    seeded = node(tmp_path, **SHARE).client(terms).rng
    own = replace(terms, id="11" * 16, settings={**terms.settings, "noise_source": "os"})
    first, second = (node(tmp_path / k, **SHARE).client(own).rng for k in "ab")
    assert len({seeded.seed(), first.seed(), second.seed()}) == 3
    assert node(tmp_path / "a", **SHARE).client(own).rng == first


def images(folder: Path, label: str, n: int = 20) -> Path:
    """Grey images below a label's folder."""
    (folder / label).mkdir(parents=True, exist_ok=True)
    for i in range(n):
        Image.fromarray(np.full((8, 8), i, np.uint8)).save(folder / label / f"{i}.png")
    return folder


def unread(path: Path) -> None:
    """Make an image undecodable, with its size and times as they were."""
    was = path.stat()
    path.write_bytes(b"x" * was.st_size)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


@pytest.mark.parametrize(
    "demand", [{"max-epsilon": 1.0}, {"accept": "moments"}, {"require-secagg": True}, {"budget": 2.0}]
)
def test_what_a_policy_refuses_is_refused_before_an_image_is_decoded(plan, tmp_path, demand):
    folder = images(tmp_path / "pictures", "normal")
    unread(folder / "normal" / "3.png")
    place = {"data": f"folder:{folder}", "home": str(tmp_path / "home")}
    offer = RunSpec(RunSpec.of(plan).settings)  # as a server sends it before it knows the nodes
    with pytest.raises(VitrailError, match="its owner's policy refuses this run") as refused:
        node(tmp_path, **place, **demand).describe(offer)
    assert refused.value.public == "refused by the node's policy"
    assert not (tmp_path / "node" / "images.json").exists()
    with pytest.raises(VitrailError, match="cannot be read"):
        node(tmp_path, **place).describe(offer)  # without a policy the images are looked at


def test_images_are_decoded_once_whoever_asks_and_again_when_a_file_changes(plan, tmp_path):
    folder, terms = images(tmp_path / "pictures", "normal"), RunSpec.of(plan)
    ours = node(tmp_path, data=f"folder:{folder}")
    first = ours.describe(terms)
    assert (first.shape, first.classes) == ((1, 8, 8), ("normal",))
    unread(folder / "normal" / "3.png")
    assert ours.describe(terms) == first
    for size in (16, 32, None):  # another run's settings: what is stored tells this, too
        other = ours.describe(replace(terms, settings={**terms.settings, "size": size, "labels": "ignore"}))
        assert (other.shape, other.classes) == ((1, size or 32, size or 32), ())
    assert (tmp_path / "node" / "images.json").stat().st_mode & 0o077 == 0
    images(folder, "pneumonia", 5)
    with pytest.raises(VitrailError, match="cannot be read"):
        ours.describe(terms)
    images(folder, "normal")
    assert ours.describe(terms).classes == ("normal", "pneumonia")
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(folder / "normal" / "3.png")
    assert ours.describe(terms).shape == (3, 8, 8)


@pytest.mark.parametrize("name", [*METHODS, *PRIVATE, "moments, auto"])
def test_an_offer_of_any_method_is_checked_without_images(name, tmp_path):
    """A policy that accepts it gets as far as the images, of which there are none; nothing fails before."""
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
    offer = RunSpec.offer(config.resolve(method, settings))
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
        ours.client(RunSpec.of(plan)).answer(encode(Message(Header(Kind.REQUEST, plan.id, 0, "server"), parts)))
    assert not (tmp_path / "home" / "budgets").exists(), "nothing was charged"


def test_a_refusal_tells_the_server_no_number_and_no_name(plan, tmp_path, capfd):
    """Another run has spent most of the budget; how much, and of what, is its owner's affair."""
    home = {"home": str(tmp_path / "home"), "budget": 3.0, "budget-name": "scans of ward 7"}
    settings = {**QUICK["moments"], "epsilon": 2.9, "noise_source": "os", "data": "digits", "size": 8, "clients": 3}
    moments = prepare(config.resolve("moments", {**settings, "rounds": 2, "out": str(tmp_path / "run")}))
    terms, ours = RunSpec.of(moments), node(tmp_path, **SHARE, **home)
    request = encode(Message(Header(Kind.REQUEST, moments.id, 0, "server")))
    assert decode(ours.client(terms).answer(request)).header.kind is Kind.REPLY
    ours.describe(terms)  # the run that spent it goes on
    later = replace(terms, id="11" * 16)
    for asked in (lambda: ours.describe(replace(later, id="")), lambda: ours.client(later)):
        with pytest.raises(VitrailError) as refused:
            asked()
        assert refused.value.public == "refused: privacy budget used up"
    assert not (tmp_path / "node" / "runs" / later.id).exists()
    own = (tmp_path / "node" / "refusals.log").read_text()
    assert own.count("for 'scans of ward 7' is used up to 2.9") == 2
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
        replies.append(decode(ours.client(RunSpec.of(plan)).answer(request)))
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
        ours.describe(RunSpec.of(moments))
    assert refused.value.public == "refused by the node's policy"
    assert "scans of ward 7.json is not a ledger" in (tmp_path / "node" / "refusals.log").read_text()


def test_the_log_of_refusals_is_bounded_and_harmless_to_a_terminal(tmp_path, capfd):
    ours = node(tmp_path)
    for k in range(40):
        ours.log(f"{k} \x1b[31m" + "x" * 3000)
    kept = (tmp_path / "node" / "refusals.log").read_bytes()
    assert len(kept) == 2**16
    assert b" 39  [31m" in kept
    assert "\x1b" not in capfd.readouterr().err


def test_a_node_that_lacks_a_label_may_name_all(plan, tmp_path):
    images(tmp_path / "pictures", "pneumonia")
    ours = node(tmp_path, data=f"folder:{tmp_path / 'pictures'}", classes="normal, pneumonia")
    described = ours.describe(RunSpec.of(plan))
    assert described.classes == ("normal", "pneumonia")
    terms = replace(RunSpec.of(plan), classes=described.classes)
    labels = ours.client(terms).pictures().labels
    assert labels is not None
    assert set(labels.tolist()) == {1}


def folder_of_pictures(root: Path, n: int = 20) -> Path:
    root.mkdir(parents=True)
    for i in range(n):
        Image.fromarray(np.full((8, 8), i, np.uint8)).save(root / f"{i}.png")
    return root


def test_a_node_trains_on_all_its_pictures_for_it_measures_nothing(plan, tmp_path):
    folder_of_pictures(tmp_path / "pictures" / "ill")
    ours = node(tmp_path, data=f"folder:{tmp_path / 'pictures'}")
    held = ours.client(replace(RunSpec.of(plan), classes=("ill",))).pictures()
    assert plan.settings.held_out > 0
    assert sorted(held.pixels[:, 0, 0, 0].tolist()) == list(range(20))


def test_a_test_folder_that_a_nodes_owner_set_apart_is_not_trained_on(plan, tmp_path):
    for part in ("train", "test"):
        folder_of_pictures(tmp_path / "pictures" / part / "ill", 20 if part == "train" else 4)
    ours = node(tmp_path, data=f"folder:{tmp_path / 'pictures'}")
    assert len(ours.client(replace(RunSpec.of(plan), classes=("ill",))).pictures()) == 20


@pytest.mark.parametrize(("label", "mode"), [("ill", "RGB"), ("new", "L")])
def test_a_node_whose_channels_or_labels_changed_since_it_described_itself_refuses(plan, tmp_path, label, mode):
    folder_of_pictures(tmp_path / "pictures" / "ill")
    ours = node(tmp_path, data=f"folder:{tmp_path / 'pictures'}")
    described = ours.describe(RunSpec.of(plan))
    terms = replace(RunSpec.of(plan), shape=described.shape, classes=described.classes)
    (tmp_path / "pictures" / label).mkdir(exist_ok=True)
    Image.new(mode, (8, 8)).save(tmp_path / "pictures" / label / "new.png")
    with pytest.raises(VitrailError, match="no longer what it described"):
        ours.client(terms).pictures()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"name": ""}, "lacks name"),
        ({"bugdet": 3}, "bugdet is no key of a node config; did you mean budget"),
        ({"budget": "much"}, "holds a wrong value"),
        ({"budget": -1}, "must be a number above 0"),
        ({"budget": "nan"}, "must be a number above 0"),
        ({"budget": "inf"}, "must be a number above 0"),
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


def test_a_node_refuses_a_private_run_whose_features_were_trained_on_its_data(tmp_path):
    settings = {
        **QUICK["moments"],
        "features": "vitrail-fashion",
        "data": "digits",
        "size": 8,
        "clients": 3,
        "out": "-",
    }
    terms = RunSpec.of(prepare(config.resolve("moments", settings)))
    (tmp_path / "fashion-mnist").mkdir()
    theirs = node(tmp_path, data=f"folder:{tmp_path}/fashion-mnist")
    with pytest.raises(VitrailError, match="were trained on fashion-mnist") as refused:
        theirs.client(terms)
    assert refused.value.public == "refused by the node's policy"
    open_ = RunSpec.of(prepare(config.resolve("moments", {**settings, "privacy": "none"})))
    assert theirs.client(open_)


def test_in_a_deployment_no_node_counts_more_images_than_the_largest_declares(tmp_path):
    assert node(tmp_path, images=480, **SHARE).images == 480
    facts = {"shape": [1, 8, 8], "classes": ["a", "b"], "names": ["n", "s"], "nonce": "00"}
    settings = config.resolve("moments", {"clients": 2, "size": 8, "data": "nodes", "noise_source": "os", "out": "-"})
    assert deployed(settings, {**facts, "images": {"n": 480, "s": 30}}).method.task.images == 480
    assert deployed(settings, {**facts, "images": {"n": 480, "s": 0}}).method.task.images == 0, "one is not told"
    assert deployed(settings, facts).method.task.images == 0
