"""A single node: descriptions, stored files and refusals."""

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
from vitrail.engines.flower.run_spec import RunSpec
from vitrail.experiment import settings as config
from vitrail.experiment.deployment.node import Node
from vitrail.experiment.deployment.plan import deployment_plan
from vitrail.experiment.deployment.specs import offer_spec, spec_of
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


def test_a_part_of_a_partition_equals_that_of_the_simulated_client(plan, tmp_path):
    ours = node(tmp_path, **SHARE)
    described = ours.describe(spec_of(plan))
    assert (described.shape, described.classes) == (plan.data.shape, plan.data.classes)
    own_images = ours.client(spec_of(plan)).images()
    assert own_images.digest() == plan.partition.client(plan.data, 1).digest()
    again = ours.client(spec_of(plan)).images()  # from the stored copy
    assert again.digest() == own_images.digest()


def test_a_description_is_decoded_to_what_was_encoded(plan, tmp_path):
    described = node(tmp_path, **SHARE).describe(spec_of(plan))
    assert Description.read(described.text()) == described
    assert Description.read(json.dumps({**GOOD, "name": "Süd [red]"})).name == "Süd [red]"


@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY)
def test_a_malformed_description_is_refused_with_a_printable_reason(text):
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


def test_a_run_spec_has_no_path_of_the_server(plan, tmp_path):
    assert str(tmp_path) not in spec_of(plan).text()
    assert RunSpec.read(spec_of(plan).text()) == spec_of(plan)


def test_another_run_spec_with_the_same_id_is_refused(plan, tmp_path):
    terms = spec_of(plan)
    ours = node(tmp_path, **SHARE)
    ours.client(terms)
    with pytest.raises(VitrailError, match="started with other settings"):
        ours.client(replace(terms, clients=4))


def answered(plan, tmp_path):
    """A node that answered the first round of a run, and a model of that run."""
    ours = node(tmp_path, **SHARE)
    server = plan.method.server_init(Rng((1,)))
    started, _ = plan.method.start_round(server, ["client-1"], Rng((2,)))
    parts = plan.method.broadcast(started, "client-1", True).parts
    request = Message(
        Header(Kind.REQUEST, plan.id, 0, "server"), tuple(make_part(n, c, np.asarray(a)) for n, (c, a) in parts.items())
    )
    assert decode(ours.client(spec_of(plan)).answer(encode(request))).header.kind is Kind.REPLY
    return ours, model_of(plan, tmp_path / "made.safetensors")


def model_of(plan, path, **changes):
    made = plan.method.export_models(plan.method.server_init(Rng((1,))))["generator"]
    save_model(path, Model(made.kind, {**made.tree, **changes}), plan.data.classes, {"run": plan.id.hex()})
    return path.read_bytes()


def test_private_files_are_protected_and_the_model_is_readable(plan, tmp_path):
    ours, made = answered(plan, tmp_path)
    terms = spec_of(plan)
    ours.describe(terms)
    ours.keep(terms, made)
    place = tmp_path / "node"
    assert (place / "node.key").stat().st_mode & 0o077 == 0
    assert (place / "runs" / terms.id).stat().st_mode & 0o077 == 0
    model = place / "models" / f"{terms.id}.safetensors"
    assert model.read_bytes() == made
    assert model.stat().st_mode & 0o044
    assert not (place / "runs" / terms.id / "pictures").exists()  # deleted at the end of the run


def test_the_ledger_is_checked_against_the_signed_number_of_answers(plan, tmp_path):
    ours, made = answered(plan, tmp_path)
    terms = spec_of(plan)
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
    returned = {"kind": "statement", "client": "client-1", **entry}
    assert recompute([opening, asked, returned]) is False
    with pytest.raises(Malformed, match="client-1 states 1 answers; the ledger records 0 requests to it"):
        recompute([opening, returned])
    with pytest.raises(Malformed, match="of another client or run"):
        recompute([{**opening, "run": "00" * 16}, asked, returned])


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
def test_a_signed_statement_with_other_fields_is_refused(lie):
    key = Key(bytes(32))
    facts = {"client": "north", "run": "00", "answers": 1, "mechanism": "none", **lie}
    text = json.dumps(facts)
    signature = key.sign(b"node statement", text.encode()).hex()
    raw = json.dumps({"statement": text, "node_key": key.public.hex(), "node_signature": signature}).encode()
    with pytest.raises(Malformed, match="does not have the fields"):
        read_statement(raw, "north", "00", key.public, 5)


def test_a_node_stores_no_model_of_a_run_that_it_has_not_answered(plan, tmp_path):
    ours, terms = node(tmp_path, **SHARE), spec_of(plan)
    made = model_of(plan, tmp_path / "made.safetensors")
    with pytest.raises(VitrailError, match="has not answered"):
        ours.keep(terms, made)
    ours.client(terms)  # requested, but not answered
    with pytest.raises(VitrailError, match="has not answered"):
        ours.keep(terms, made)
    assert not (tmp_path / "node" / "models").exists()


def test_a_node_stores_no_model_for_another_run_spec(plan, tmp_path):
    ours, made = answered(plan, tmp_path)
    with pytest.raises(VitrailError, match="started with other settings"):
        ours.keep(replace(spec_of(plan), clients=4), made)
    assert not (tmp_path / "node" / "models").exists()


def test_a_node_stores_one_model_per_run(plan, tmp_path):
    ours, made = answered(plan, tmp_path)
    terms = spec_of(plan)
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
    ("changed", "expected"),
    [
        (lambda plan, path: bytes(10_000), "damaged or not a vitrail file"),
        (lambda plan, path: model_of(plan, path, width=2.0), "the model has width = 2.0, the run has 1.0"),
        (lambda plan, path: model_of(plan, path, shape=[1, 16, 16]), "the model has shape"),
        (lambda plan, path: model_of(plan, path, mask=np.zeros(2**20, np.uint8)), "does not fit together"),
        (lambda plan, path: padded(path, model_of(plan, path)), "but its network has"),
    ],
)
def test_a_node_stores_only_a_model_of_the_network_of_the_run(plan, tmp_path, changed, expected):
    ours, _ = answered(plan, tmp_path)
    with pytest.raises(VitrailError, match=expected):
        ours.keep(spec_of(plan), changed(plan, tmp_path / "bad.safetensors"))
    assert not (tmp_path / "node" / "models").exists()


def test_the_owner_of_a_node_may_choose_its_discriminator(tmp_path):
    settings = {
        **QUICK["psfedgan"],
        "data": "digits",
        "size": 8,
        "clients": 3,
        "rounds": 2,
        "out": str(tmp_path / "run"),
    }
    terms = spec_of(prepare(config.resolve("psfedgan", settings)))
    chosen = node(tmp_path, **SHARE, discriminator="dense:6").client(terms).method
    assert chosen.architecture == "dense:6"
    assert node(tmp_path, **SHARE).client(terms).method.architecture == f"dcgan:{QUICK['psfedgan']['d_width']}"
    with pytest.raises(VitrailError, match="'resnet:6' is not known"):
        node(tmp_path, **SHARE, discriminator="resnet:6").client(terms)


def test_two_processes_that_answer_one_request_return_the_same_reply(tmp_path):
    """Flower may give up a slow process and repeat the request: noise must not be drawn twice."""
    settings = {
        **QUICK["moments"],
        "privacy": "moments",
        "noise_source": "os",
        "data": "digits",
        "size": 8,
        "clients": 3,
    }
    plan = prepare(config.resolve("moments", {**settings, "out": str(tmp_path / "run")}))
    ours, terms = node(tmp_path, **SHARE), spec_of(plan)
    request = encode(Message(Header(Kind.REQUEST, plan.id, 0, "server")))
    with ThreadPoolExecutor(2) as both:
        returned = list(both.map(lambda _: ours.client(terms).answer(request), range(2)))
    assert decode(returned[0]).header.kind is Kind.REPLY
    assert returned[0] == returned[1]


def test_the_reason_why_images_cannot_be_read_stays_on_the_node(plan, tmp_path, capfd):
    ours = node(tmp_path, data=f"folder:{tmp_path / 'nowhere'}")
    with pytest.raises(VitrailError) as refused:
        ours.describe(spec_of(plan))
    assert str(tmp_path) not in str(refused.value)
    assert str(tmp_path / "nowhere") in capfd.readouterr().err


def test_damaged_private_state_is_reported_without_its_path(plan, tmp_path):
    ours = node(tmp_path, **SHARE)
    client = ours.client(spec_of(plan))
    client.path.write_bytes(b"damaged")
    reply = decode(client.answer(encode(Message(Header(Kind.REQUEST, plan.id, 0, "server")))))
    returned = bytes(reply.parts[0].array()).decode()
    assert "damaged" in returned
    assert str(tmp_path) not in returned


def test_with_noise_source_os_a_node_draws_from_its_own_secret(plan, tmp_path):
    terms = spec_of(plan)
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
    """Make an image undecodable, with its size and times unchanged."""
    was = path.stat()
    path.write_bytes(b"x" * was.st_size)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


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


def test_images_are_decoded_once_until_a_file_changes(plan, tmp_path):
    folder, terms = images(tmp_path / "images", "normal"), spec_of(plan)
    ours = node(tmp_path, data=f"folder:{folder}")
    first = ours.describe(terms)
    assert (first.shape, first.classes) == ((1, 8, 8), ("normal",))
    unread(folder / "normal" / "3.png")
    assert ours.describe(terms) == first
    for size in (16, 32, None):  # settings of other runs need no decoding
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
    terms, ours = spec_of(moments), node(tmp_path, **SHARE, **home)
    request = encode(Message(Header(Kind.REQUEST, moments.id, 0, "server")))
    assert decode(ours.client(terms).answer(request)).header.kind is Kind.REPLY
    ours.describe(terms)  # the run that spent it may continue
    later = replace(terms, id="11" * 16)
    for asked in (lambda: ours.describe(replace(later, id="")), lambda: ours.client(later)):
        with pytest.raises(VitrailError) as refused:
            asked()
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


def test_a_node_that_lacks_a_label_may_list_all(plan, tmp_path):
    images(tmp_path / "images", "pneumonia")
    ours = node(tmp_path, data=f"folder:{tmp_path / 'images'}", classes="normal, pneumonia")
    described = ours.describe(spec_of(plan))
    assert described.classes == ("normal", "pneumonia")
    terms = replace(spec_of(plan), classes=described.classes)
    labels = ours.client(terms).images().labels
    assert labels is not None
    assert set(labels.tolist()) == {1}


def folder_of_images(root: Path, n: int = 20) -> Path:
    root.mkdir(parents=True)
    for i in range(n):
        Image.fromarray(np.full((8, 8), i, np.uint8)).save(root / f"{i}.png")
    return root


def test_a_node_trains_on_all_its_images(plan, tmp_path):
    folder_of_images(tmp_path / "images" / "ill")
    ours = node(tmp_path, data=f"folder:{tmp_path / 'images'}")
    own_images = ours.client(replace(spec_of(plan), classes=("ill",))).images()
    assert plan.settings.test_fraction > 0
    assert sorted(own_images.pixels[:, 0, 0, 0].tolist()) == list(range(20))


def test_a_node_does_not_train_on_a_separate_test_folder(plan, tmp_path):
    for part in ("train", "test"):
        folder_of_images(tmp_path / "images" / part / "ill", 20 if part == "train" else 4)
    ours = node(tmp_path, data=f"folder:{tmp_path / 'images'}")
    assert len(ours.client(replace(spec_of(plan), classes=("ill",))).images()) == 20


@pytest.mark.parametrize(("label", "mode"), [("ill", "RGB"), ("new", "L")])
def test_a_node_whose_images_differ_from_its_description_refuses(plan, tmp_path, label, mode):
    folder_of_images(tmp_path / "images" / "ill")
    ours = node(tmp_path, data=f"folder:{tmp_path / 'images'}")
    described = ours.describe(spec_of(plan))
    terms = replace(spec_of(plan), shape=described.shape, classes=described.classes)
    (tmp_path / "images" / label).mkdir(exist_ok=True)
    Image.new(mode, (8, 8)).save(tmp_path / "images" / label / "new.png")
    with pytest.raises(VitrailError, match="differ from its description"):
        ours.client(terms).images()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"name": ""}, "lacks name"),
        ({"bugdet": 3}, "bugdet is not a key of a node config; did you mean budget"),
        ({"budget": "much"}, "has an invalid value"),
        ({"budget": -1}, "must be a number above 0"),
        ({"budget": "nan"}, "must be a number above 0"),
        ({"budget": "inf"}, "must be a number above 0"),
    ],
)
def test_an_invalid_node_config_is_refused_with_the_reason(tmp_path, given, expected):
    with pytest.raises(VitrailError, match=expected):
        node(tmp_path, **given)


def test_without_flower_the_error_names_the_package_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    settings = {**QUICK["prism"], "data": "digits", "size": 8, "engine": "flower", "out": str(tmp_path / "x")}
    with pytest.raises(VitrailError, match=r'pip install "vitrail\[flower\]"'):
        prepare(config.resolve("prism", settings))
    assert not (tmp_path / "x").exists()


def test_importing_the_client_app_does_not_import_torch():
    import subprocess

    code = "import json, sys, vitrail.experiment.deployment.client_app; print(json.dumps(list(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    heavy = ("torch", "sklearn", "matplotlib", "torchmetrics", "opacus", "flwr_datasets", "datasets", "scipy", "pandas")
    assert not set(heavy) & set(loaded)


def test_a_node_refuses_private_runs_with_features_trained_on_its_data(tmp_path):
    settings = {
        **QUICK["moments"],
        "features": "vitrail-fashion",
        "data": "digits",
        "size": 8,
        "clients": 3,
        "out": "-",
    }
    terms = spec_of(prepare(config.resolve("moments", settings)))
    (tmp_path / "fashion-mnist").mkdir()
    theirs = node(tmp_path, data=f"folder:{tmp_path}/fashion-mnist")
    with pytest.raises(VitrailError, match="were trained on fashion-mnist") as refused:
        theirs.client(terms)
    assert refused.value.public == "refused by the node's policy"
    open_ = spec_of(prepare(config.resolve("moments", {**settings, "privacy": "none"})))
    assert theirs.client(open_)


def test_declared_numbers_of_images_bound_the_images_of_all_nodes(tmp_path):
    assert node(tmp_path, images=480, **SHARE).config.images == 480
    facts = {"shape": [1, 8, 8], "classes": ["a", "b"], "names": ["n", "s"], "nonce": "00"}
    settings = config.resolve("moments", {"clients": 2, "size": 8, "data": "nodes", "noise_source": "os", "out": "-"})
    assert deployment_plan(settings, {**facts, "images": {"n": 480, "s": 30}}).method.task.images == 480
    assert deployment_plan(settings, {**facts, "images": {"n": 480, "s": 0}}).method.task.images == 0, "one is not told"
    assert deployment_plan(settings, facts).method.task.images == 0
