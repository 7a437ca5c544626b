"""Eavesdroppers on PS-FedGAN: with the seed they have everything, without some of it or of the messages they do not."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.auditing.test_audit_run import run_cli
from tests.federation import federate, quick, same
from vitrail import train
from vitrail.auditing.audit_run import audit_run
from vitrail.auditing.eavesdropper import EMBEDDING, WEIGHT, Eavesdropper, Kind, begin, check_r, kinds
from vitrail.auditing.replay import Wire
from vitrail.methods.psfedgan import twin as twins
from vitrail.methods.psfedgan.messages import read
from vitrail.nets.flat import from_vector
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.wire.message import decode

TINY = {"data": "digits", "size": 8, "clients": 3, "workers": 1, "grids": 0, "eval_every": 0}
SMALL = {
    "width": 4,
    "latent_dim": 8,
    "d_width": 4,
    "batch_size": 8,
    "steps_per_message": 2,
    "classifier_rounds": 1,
    "classifier_steps": 2,
}
SEED, NONE = Kind("with the seed"), Kind("without the seed", granted=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Clients that now and then do not answer, and D's that travel as coded changes."""
    out = tmp_path_factory.mktemp("heard") / "run"
    return train("psfedgan", **TINY, **SMALL, rounds=6, client_dropout=0.2, d_coding="delta", out=str(out)).folder


@pytest.fixture(scope="module")
def heard(run):
    """What the command line says, and what it kept."""
    done = run_cli(run, "--attacks", "eavesdroppers", "--r", "0.5", "--users", 2)
    assert done.exit_code == 0, done.output
    return done.output, json.loads((run / "audit.json").read_text())["findings"][0]


def figures(case):
    return {figure["name"]: figure["value"] for figure in case["figures"]}


def test_with_the_seed_everything_is_had_to_the_bit(heard):
    _, finding = heard
    cases = [case for case in finding["cases"] if case["attacker"] == "with the seed"]
    assert [case["victim"] for case in cases] == ["client-0", "client-1"]
    for case in cases:
        found = figures(case)
        assert case["note"] == "the same bits as G_s"
        assert found["NMSE"] == 0
        assert found["SSIM"] == pytest.approx(1, abs=1e-6)
        assert found["accuracy"] == found["cloud's accuracy"]


def test_everybody_else_has_another_generator(heard):
    _, finding = heard
    others = [case for case in finding["cases"] if case["attacker"] != "with the seed"]
    assert {case["attacker"] for case in others} == {
        "A1, r = 0.5",
        "A2, r = 0.5",
        "missed the first message",
        "missed one message in 10",
        "without the seed",
        "without the seed, width 2",
    }
    for case in others:
        assert case["note"] == ""
        assert figures(case)["NMSE"] > 0
        assert figures(case)["SSIM"] < 1


def test_the_run_that_is_played_again_is_the_run(run, heard):
    assert "ended with the run's own G_s, to the bit" in heard[1]["note"]
    finding = audit_run(run, ["eavesdroppers"], r=[0.5], users=1, rounds=3).findings[0]
    assert finding.note.startswith("3 of 5 rounds")
    assert "to the bit" not in finding.note


def test_losses_are_kept_message_by_message(run, heard):
    _, finding = heard
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for curves, user in zip(finding["curves"], ("client-0", "client-1"), strict=True):
        messages = sum(user in row["up"] and user not in row["excluded"] for row in rows)
        assert all(len(line) == messages for line in curves["lines"].values())
        assert curves["lines"]["missed the first message"][0] is None
        assert all(map(math.isfinite, curves["lines"]["with the seed (the cloud's)"]))


def test_it_is_on_the_terminal_and_in_the_report_with_its_pictures(run, heard):
    said, finding = heard
    assert "missed one message in 10" in said
    page = (run / "report.html").read_text()
    assert "Eavesdroppers" in page
    assert "G&#39;s loss by message, client-1" in page
    assert "from top to bottom: the cloud; with the seed; A1, r = 0.5; A2, r = 0.5" in page
    assert (run / finding["picture"]).exists()
    shown = page.index('<figure class="attack-image">')
    assert "data:image/png;base64," in page[shown : shown + 200]


# -- what each is granted ---------------------------------------------------------------------------------------------


def beginning(method, secret=bytes(32)):
    return twins.begin(method.generator(), twins.Secret(secret, "a"), 0)


@pytest.mark.parametrize("tensor", [WEIGHT, EMBEDDING])
def test_a_flawed_start_differs_from_the_true_one_in_one_tensor_alone(tensor):
    method = quick("psfedgan")
    true = beginning(method)
    found = begin(Kind("", scaled=tensor, r=0.5), method, true, b"")
    G, A = (from_vector(method.generator(), state["generator"]).state_dict() for state in (true, found))
    assert {name for name in G if not torch.equal(G[name], A[name])} == {tensor}
    assert torch.equal(A[tensor], G[tensor] * 0.5)


def messages(method, folder):
    """All that one client publishes."""
    fed, _, traffic = federate(method, folder, rounds=2)
    found, before = [], None
    for client, data in traffic.replies:
        if client == "client-0":
            found.append(read(method, {p.name: p.array() for p in decode(data).parts}, before))
            before = found[-1].kept()
    return fed, found, traffic


def grown(kind, method, secret, said):
    one = Eavesdropper(kind, method, secret, Rng((7,)))
    for message in said:
        one.hear(message)
    return one.twin.state()


def test_who_is_not_granted_the_secret_does_not_depend_on_it(tmp_path):
    method = quick("psfedgan")
    fed, _, traffic = messages(method, tmp_path)
    grown_with = []
    for key in (fed.server["key"], bytes(31) + b"\1"):
        wire = Wire(method, [SEED, NONE], ["client-0"], key, Rng((7,)))
        for client, data in traffic.replies:
            if client == "client-0":
                wire.carry(client, data)
        grown_with.append([one.twin.state() for one in wire.listening["client-0"]])
    (true, guessed), (wrong, guessed_again) = grown_with
    cloud = fed.server["twins"]["client-0"]
    assert same({k: cloud[k] for k in true}, true)  # its Adam too
    assert not np.array_equal(cloud["generator"], wrong["generator"])
    assert same(guessed, guessed_again)


def test_a_message_that_was_missed_changes_g(tmp_path):
    method = quick("psfedgan")
    _, said, _ = messages(method, tmp_path)
    true = beginning(method)
    whole, first, second = (
        grown(kind, method, true, said)["generator"]
        for kind in (SEED, Kind("", misses_first=True), Kind("", misses_some=True))
    )
    np.testing.assert_array_equal(first, grown(SEED, method, true, said[1:])["generator"])
    np.testing.assert_array_equal(second, grown(SEED, method, true, said[:1])["generator"])
    assert not np.array_equal(whole, first)
    assert not np.array_equal(whole, second)


# -- what is refused, and what there is nothing for ---------------------------------------------------------------------


@pytest.mark.parametrize("r", [1.0, 1 - 1e-15, 1 - 1e-21])
def test_an_r_that_is_one_in_float32_is_refused(r):
    with pytest.raises(VitrailError, match="is 1 in float32, so this attacker has the seed"):
        check_r([0.5, r])


def test_it_is_refused_before_any_attack_begins(run):
    told = []
    with pytest.raises(VitrailError, match="is 1 in float32"):
        audit_run(run, ["membership", "eavesdroppers"], r=[1 - 1e-15], tell=told.append)
    assert told == []


def test_the_nearest_r_to_one_that_float32_holds_changes_the_start():
    method = quick("psfedgan")
    true = beginning(method)
    (r,) = check_r([1 - 1e-7])
    found = begin(Kind("", scaled=WEIGHT, r=r), method, true, b"")
    assert not np.array_equal(found["generator"], true["generator"])


def test_where_it_does_not_apply_it_says_so(run, tmp_path):
    with pytest.raises(VitrailError, match="no weight can be multiplied by it"):
        check_r([math.inf])
    assert "give numbers by commas" in str(run_cli(run, "--r", "much").exception)
    other = tmp_path / "other"
    train("fedgan", **TINY, width=4, latent_dim=8, rounds=1, out=str(other))
    with pytest.raises(VitrailError, match="give a run of psfedgan"):
        audit_run(other, ["eavesdroppers"], r=[0.5])
    assert audit_run(other, ["eavesdroppers"]).skipped == ["eavesdroppers"]


def test_without_labels_there_is_no_a2():
    method = quick("psfedgan")
    unlabelled = replace(method, task=replace(method.task, classes=0))
    assert [k.name for k in kinds(method, [0.5]) if k not in kinds(unlabelled, [0.5])] == ["A2, r = 0.5"]
