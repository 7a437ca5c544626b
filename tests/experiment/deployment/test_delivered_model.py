"""Models that a server delivers to a node, and the statement that the node returns."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.experiment.deployment.nodes import SHARE, node
from vitrail.experiment.deployment.specs import spec_of
from vitrail.methods.base import Model
from vitrail.models.model_file import save_model
from vitrail.privacy.checked_ledger import recompute
from vitrail.privacy.statement import check_statement, read_statement
from vitrail.utils import state
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.keys import Key
from vitrail.utils.rng import Rng
from vitrail.wire.message import Header, Kind, Message, decode, encode, make_part


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


def padded(path, raw):
    """A model file with two megabytes that belong to no network."""
    path.write_bytes(raw)
    tree = state.load(path)
    state.save(path, {**tree, "about": {**tree["about"], "more": bytes(2 * 2**20)}})
    return path.read_bytes()


def test_private_files_are_protected_and_the_model_is_readable(plan, tmp_path):
    ours, made = answered(plan, tmp_path)
    spec = spec_of(plan)
    ours.describe(spec)
    ours.keep(spec, made)
    place = tmp_path / "node"
    assert (place / "node.key").stat().st_mode & 0o077 == 0
    assert (place / "runs" / spec.id).stat().st_mode & 0o077 == 0
    model = place / "models" / f"{spec.id}.safetensors"
    assert model.read_bytes() == made
    assert model.stat().st_mode & 0o044
    assert not (place / "runs" / spec.id / "images").exists()  # deleted at the end of the run


def test_the_ledger_is_checked_against_the_signed_number_of_answers(plan, tmp_path):
    ours, made = answered(plan, tmp_path)
    spec = spec_of(plan)
    key = bytes.fromhex(ours.describe(spec).key)
    raw = ours.keep(spec, made)
    entry = read_statement(raw, "client-1", spec.id, key, 1)
    facts = check_statement(entry)
    assert (facts["answers"], facts["mechanism"]) == (1, "none")
    with pytest.raises(Malformed, match="not signed by the key"):
        check_statement({**entry, "statement": entry["statement"].replace('"answers": 1', '"answers": 0')})
    for other in (("client-2", spec.id, key), ("client-1", "00" * 16, key), ("client-1", spec.id, bytes(32))):
        with pytest.raises(Malformed, match="another client, run or key"):
            read_statement(raw, *other, 1)
    with pytest.raises(Malformed, match="states 1 replies and had 0 requests"):
        read_statement(raw, "client-1", spec.id, key, 0)
    opening = {"kind": "opening", "private": False, "says": "not private", "run": spec.id}
    requested = {"kind": "round", "round": 0, "asked": ["client-1"]}
    returned = {"kind": "statement", "client": "client-1", **entry}
    assert recompute([opening, requested, returned]) is False
    with pytest.raises(Malformed, match="client-1 states 1 replies; the ledger records 0 requests to it"):
        recompute([opening, returned])
    with pytest.raises(Malformed, match="of another client or run"):
        recompute([{**opening, "run": "00" * 16}, requested, returned])


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
    ours, spec = node(tmp_path, **SHARE), spec_of(plan)
    made = model_of(plan, tmp_path / "made.safetensors")
    with pytest.raises(VitrailError, match="has not answered"):
        ours.keep(spec, made)
    ours.client(spec)  # requested, but not answered
    with pytest.raises(VitrailError, match="has not answered"):
        ours.keep(spec, made)
    assert not (tmp_path / "node" / "models").exists()


def test_a_node_stores_no_model_for_another_run_spec(plan, tmp_path):
    ours, made = answered(plan, tmp_path)
    with pytest.raises(VitrailError, match="started with other settings"):
        ours.keep(replace(spec_of(plan), clients=4), made)
    assert not (tmp_path / "node" / "models").exists()


def test_a_node_stores_one_model_per_run(plan, tmp_path):
    ours, made = answered(plan, tmp_path)
    spec = spec_of(plan)
    ours.keep(spec, made)
    ours.keep(spec, made)  # a server that was restarted delivers it again
    with pytest.raises(VitrailError, match="another model"):
        ours.keep(spec, model_of(plan, tmp_path / "other.safetensors", seed=1))
    assert (tmp_path / "node" / "models" / f"{spec.id}.safetensors").read_bytes() == made


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
