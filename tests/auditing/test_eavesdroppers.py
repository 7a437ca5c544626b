"""Eavesdroppers on PS-FedGAN: only one with the seed and all messages rebuilds the generator."""

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
from vitrail.auditing.eavesdropper import Eavesdropper, EavesdropperKind, check_r, kinds
from vitrail.auditing.eavesdroppers import Wiretap
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
SEED, NONE = EavesdropperKind("with the seed"), EavesdropperKind("without the seed", granted=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose clients drop out at times, and whose D's are sent as coded differences."""
    out = tmp_path_factory.mktemp("attacked") / "run"
    return train("psfedgan", **TINY, **SMALL, rounds=6, client_dropout=0.2, d_coding="delta", out=str(out)).folder


@pytest.fixture(scope="module")
def audited(run):
    """The output of `vitrail audit`, and its finding in audit.json."""
    done = run_cli(run, "--attacks", "eavesdroppers", "--r", "0.5", "--users", 2)
    assert done.exit_code == 0, done.output
    return done.output, json.loads((run / "audit.json").read_text())["findings"][0]


def figures(case):
    return {figure["name"]: figure["value"] for figure in case["figures"]}


def test_an_eavesdropper_with_the_seed_has_g_bit_for_bit(audited):
    _, finding = audited
    cases = [case for case in finding["cases"] if case["attacker"] == "with the seed"]
    assert [case["victim"] for case in cases] == ["client-0", "client-1"]
    for case in cases:
        found = figures(case)
        assert case["note"] == "the same bits as G_s"
        assert found["NMSE"] == 0
        assert found["SSIM"] == pytest.approx(1, abs=1e-6)
        assert found["accuracy"] == found["cloud's accuracy"]


def test_every_other_eavesdropper_has_another_generator(audited):
    _, finding = audited
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


def test_the_replay_equals_the_run(run, audited):
    assert "with the same G_s as the run, bit for bit" in audited[1]["note"]
    finding = audit_run(run, ["eavesdroppers"], r=[0.5], users=1, rounds=3).findings[0]
    assert finding.note.startswith("3 of 5 rounds")
    assert "bit for bit" not in finding.note


def test_losses_are_reported_per_message(run, audited):
    _, finding = audited
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for curves, user in zip(finding["curves"], ("client-0", "client-1"), strict=True):
        messages = sum(user in row["up"] and user not in row["excluded"] for row in rows)
        assert all(len(line) == messages for line in curves["lines"].values())
        assert curves["lines"]["missed the first message"][0] is None
        assert all(map(math.isfinite, curves["lines"]["with the seed (the cloud's)"]))


def test_the_attack_is_in_the_output_and_in_the_report_with_its_images(run, audited):
    output, finding = audited
    assert "missed one message in 10" in output
    page = (run / "report.html").read_text()
    assert "Eavesdroppers" in page
    assert "G&#39;s loss by message, client-1" in page
    assert "top to bottom: the cloud; with the seed; A1, r = 0.5; A2, r = 0.5" in page
    assert (run / finding["picture"]).exists()
    shown = page.index('<figure class="attack-image">')
    assert "data:image/png;base64," in page[shown : shown + 200]


# -- what each one has -----------------------------------------------------------------------------------------------


def initial_state(method, secret=bytes(32)):
    return method.eavesdropping().guessed_start(secret)


@pytest.mark.parametrize("tensor", ["layers.0.weight", "embed.weight"])
def test_a_scaled_start_differs_from_the_true_one_in_one_tensor_only(tensor):
    method = quick("psfedgan")
    true = initial_state(method)
    found = Eavesdropper(EavesdropperKind("", scaled=tensor, r=0.5), method.eavesdropping(), true, Rng((7,))).state
    G, A = (from_vector(method.generator(), state["generator"]).state_dict() for state in (true, found))
    assert {name for name in G if not torch.equal(G[name], A[name])} == {tensor}
    assert torch.equal(A[tensor], G[tensor] * 0.5)


def messages(method, folder):
    """Run a federation; return it, the messages of one client, and the traffic."""
    fed, _, traffic = federate(method, folder, rounds=2)
    found, before = [], None
    for client, data in traffic.replies:
        if client == "client-0":
            found.append(method.eavesdropping().read({p.name: p.array() for p in decode(data).parts}, before))
            before = found[-1].state()
    return fed, found, traffic


def rebuild(kind, method, secret, messages):
    one = Eavesdropper(kind, method.eavesdropping(), secret, Rng((7,)))
    for message in messages:
        one.receive(message)
    return one.state


def test_an_eavesdropper_without_the_secret_does_not_depend_on_it(tmp_path):
    method = quick("psfedgan")
    fed, _, traffic = messages(method, tmp_path)
    rebuilt = []
    for key in (fed.server["key"], bytes(31) + b"\1"):
        server = {**fed.server, "key": key}
        wiretap = Wiretap(method.eavesdropping(), [SEED, NONE], ["client-0"], server, Rng((7,)))
        for client, data in traffic.replies:
            if client == "client-0":
                wiretap.receive(client, data)
        rebuilt.append([one.state for one in wiretap.eavesdroppers["client-0"]])
    (true, guessed), (wrong, guessed_again) = rebuilt
    cloud = fed.server["twins"]["client-0"]
    assert same({k: cloud[k] for k in true}, true)  # its Adam too
    assert not np.array_equal(cloud["generator"], wrong["generator"])
    assert same(guessed, guessed_again)


def test_a_missed_message_changes_g(tmp_path):
    method = quick("psfedgan")
    _, sent, _ = messages(method, tmp_path)
    true = initial_state(method)
    whole, first, second = (
        rebuild(kind, method, true, sent)["generator"]
        for kind in (SEED, *(kind for kind in kinds(method.eavesdropping(), []) if "missed" in kind.name))
    )
    np.testing.assert_array_equal(first, rebuild(SEED, method, true, sent[1:])["generator"])
    np.testing.assert_array_equal(second, rebuild(SEED, method, true, sent[:1])["generator"])
    assert not np.array_equal(whole, first)
    assert not np.array_equal(whole, second)


# -- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("r", [1.0, 1 - 1e-15, 1 - 1e-21])
def test_an_r_that_is_one_in_float32_is_refused(r):
    with pytest.raises(VitrailError, match="is 1 in float32, so this attacker would have the seed"):
        check_r([0.5, r])


def test_a_wrong_r_is_refused_before_any_attack_starts(run):
    progress = []
    with pytest.raises(VitrailError, match="is 1 in float32"):
        audit_run(run, ["membership", "eavesdroppers"], r=[1 - 1e-15], report_progress=progress.append)
    assert progress == []


def test_the_float32_factor_nearest_to_1_changes_the_start():
    method = quick("psfedgan")
    true = initial_state(method)
    (r,) = check_r([1 - 1e-7])
    found = Eavesdropper(
        EavesdropperKind("", scaled="layers.0.weight", r=r), method.eavesdropping(), true, Rng((7,))
    ).state
    assert not np.array_equal(found["generator"], true["generator"])


def test_the_attack_is_skipped_for_methods_without_secret_generators(run, tmp_path):
    with pytest.raises(VitrailError, match="not a factor of a float32 weight"):
        check_r([math.inf])
    assert "give numbers by commas" in str(run_cli(run, "--r", "much").exception)
    other = tmp_path / "other"
    train("fedgan", **TINY, width=4, latent_dim=8, rounds=1, out=str(other))
    with pytest.raises(VitrailError, match="give a run of a method whose server rebuilds"):
        audit_run(other, ["eavesdroppers"], r=[0.5])
    assert audit_run(other, ["eavesdroppers"]).skipped == ["eavesdroppers"]


def test_without_labels_there_is_no_a2():
    method = quick("psfedgan")
    unlabelled = replace(method, task=replace(method.task, classes=0))
    labelled, without = (kinds(m.eavesdropping(), [0.5]) for m in (method, unlabelled))
    assert [k.name for k in labelled if k not in without] == ["A2, r = 0.5"]
    assert quick("fullgan").eavesdropping() is None
