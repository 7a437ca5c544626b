"""Ledgers that are read and checked: forged, shortened or extended ones are refused."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import vitrail
from tests.privacy.ledgers import MOMENTS, rechained
from vitrail.privacy.accounting import epsilon
from vitrail.privacy.checked_ledger import read_run_ledger
from vitrail.privacy.claims import read_spent
from vitrail.privacy.ledger import Ledger, read
from vitrail.utils import state as store
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.keys import Key

OLD = Path(__file__).parents[1] / "fixtures" / "v0.1.0"


@pytest.mark.parametrize("name", ["fedgan", "moments", "padpaf", "prism", "psfedgan"])
def test_ledgers_of_0_1_0_are_valid_and_reported_as_not_signed(name):
    checked = read_run_ledger(OLD / name)
    assert checked.model == "the model file names its last entry"
    assert checked.signed.startswith("not signed (version 0.1.0")
    assert not checked.recomputed


def smaller(entry):
    if "epsilon" in entry:
        entry["says"] = entry["says"].replace("ε = 9.8", "ε = 0.1")
        entry["epsilon"] = 0.1


def test_a_ledger_is_signed_and_states_what_that_proves(run):
    checked = read_run_ledger(run.folder)
    (key,) = {entry["key"] for entry in checked.entries}
    assert checked.recomputed
    assert checked.signed == f"signed by {key} (all signatures are valid)"
    assert "It does not prove that the code which ran adds this noise, nor whose key it is" in checked.proves
    without_noise = {name: value for name, value in checked.entries[0].items() if name != "mechanism"}
    assert "It does not prove whose key it is" in replace(checked, entries=[without_noise]).proves
    checked.check_key(key)
    assert not (run.folder / "run.key").exists(), "the key is deleted after the last entry"


def test_a_forged_ledger_that_was_chained_again_is_refused(run):
    (run.folder / "model.safetensors").unlink()  # the forger replaces the model file too
    rechained(run.folder / "ledger.json", smaller)
    with pytest.raises(Malformed, match="no valid signature"):
        read_run_ledger(run.folder)


def test_a_forged_epsilon_signed_by_another_key_does_not_match_the_records(run):
    (run.folder / "model.safetensors").unlink()
    key = read_run_ledger(run.folder).entries[0]["key"]
    rechained(run.folder / "ledger.json", smaller, key=lambda: Key(bytes(32)))
    with pytest.raises(Malformed, match=r"states ε = 0.1; .* give 9.8"):
        read_run_ledger(run.folder)
    entries = json.loads((run.folder / "ledger.json").read_text())
    assert entries[0]["key"] != key


def test_a_ledger_of_another_key_is_refused_by_readers_who_know_the_key(run):
    (run.folder / "model.safetensors").unlink()
    key = read_run_ledger(run.folder).entries[0]["key"]

    def more_noise(entry):
        for one in entry.get("spent", []):
            one["multiplier"] *= 10
        if "sigma" in entry:
            entry["sigma"] *= 10
        if "epsilon" in entry:
            entry["epsilon"] = epsilon(read_spent(entry["spent"]), entry["delta"])
            entry["says"] = entry["says"].replace("ε = 9.8", f"ε = {entry['epsilon']:.3g}")

    rechained(run.folder / "ledger.json", more_noise, key=lambda: Key(bytes(32)))
    checked = read_run_ledger(run.folder)  # it is consistent: only the key shows that it is forged
    with pytest.raises(Malformed, match="of another party, or was rewritten"):
        checked.check_key(key)


def test_a_closing_entry_must_count_the_answers_that_its_rounds_record(tmp_path):
    run = vitrail.train("prism", privacy="mask-update", epsilon=9.8, out=str(tmp_path / "run"),
                        **{**MOMENTS, "rounds": 2})  # fmt: skip
    (run.folder / "model.safetensors").unlink()

    def fewer(entry):
        if entry["kind"] == "closing":
            entry["spent"][-1]["answers"] = 1

    rechained(run.folder / "ledger.json", fewer, key=lambda: Key(bytes(32)))
    with pytest.raises(Malformed, match="counts 1 replies"):
        read_run_ledger(run.folder)


def forged(run, change, more=()):
    """Return why a ledger is refused that a forger changed, extended and signed with another key."""
    (run.folder / "model.safetensors").unlink()
    path, key = run.folder / "ledger.json", Key(bytes(32))
    rechained(path, change, key=lambda: key)
    ledger = Ledger(path, key=lambda: key)
    for entry in more:
        ledger.write(**entry)
    with pytest.raises(Malformed) as refused:
        read_run_ledger(run.folder)
    return str(refused.value)


def test_a_second_closing_entry_is_refused(run):
    closing = read(run.folder / "ledger.json")[-1]
    again = {k: v for k, v in closing.items() if k not in ("n", "previous", "hash", "key", "signature")}
    assert "one closing" in forged(run, lambda _: None, [again])


def test_a_claim_without_a_record_of_releases_is_refused(run):
    def bare(entry):
        entry.pop("spent", None)

    assert "does not record what was released" in forged(run, bare)


def test_a_claim_in_other_words_than_its_record_is_refused(run):
    def bolder(entry):
        if "says" in entry:
            entry["says"] = "ε = 0.01 at δ = 1e-05 for one image (formerly " + entry["says"] + ")"

    assert "in other words" in forged(run, bolder)


def test_more_rounds_than_were_planned_are_refused(run):
    entries = read(run.folder / "ledger.json")
    (run.folder / "ledger.json").write_text(json.dumps(entries[:2]))
    again = {"kind": "round", "round": 0, "asked": "all"}
    assert "not an opening, rounds in their order" in forged(run, lambda _: None, [again])


def test_a_secure_sum_that_was_requested_twice_counts_twice(tmp_path):
    """After a void round all clients are requested again, with new noise: more answers than planned."""

    how = {**MOMENTS, "clients": 3, "rounds": 5, "secagg_threshold": 3, "client_dropout": 0.1}
    run, void = None, 0
    for seed in range(20):  # until a client drops out of the first round, and none of a later one
        with suppress(VitrailError):  # too many void rounds
            run = vitrail.train("moments", out=str(tmp_path / f"run{seed}"), seed=seed, **how)
            void = [bool(row["void"]) for row in run.rows].index(False)
            if void:
                break
    closing = read_run_ledger(run.folder).entries[-1]
    assert closing["most_answers"] == void + 1 > 1
    assert closing["epsilon"] > read(run.folder / "ledger.json")[0]["epsilon"]


def test_a_model_without_a_closing_entry_is_refused(run):
    path = run.folder / "ledger.json"
    entries = json.loads(path.read_text())
    path.write_text(json.dumps(entries[:-1]))
    tree = store.load(run.folder / "model.safetensors")
    about = {**tree["about"], "ledger": entries[-2]["hash"]}
    store.save(run.folder / "model.safetensors", {**tree, "about": about})
    with pytest.raises(Malformed, match="no closing entry names it"):
        read_run_ledger(run.folder)


def test_a_closing_entry_claims_no_more_than_the_opening(run):
    def opening_not(entry):
        if entry["kind"] == "opening":
            entry["private"] = False

    assert "its opening entry does not" in forged(run, opening_not)


def test_a_closing_entry_must_have_the_releases_of_the_run_before(run):
    def one_more(entry):
        if entry["kind"] == "opening":
            entry["spent"].insert(0, dict(entry["spent"][0]))
            entry["epsilon"] = epsilon(read_spent(entry["spent"]), entry["delta"])
            entry["says"] = entry["says"].replace("ε = 9.8", f"ε = {entry['epsilon']:.3g}")

    assert "its rounds and opening entry give" in forged(run, one_more)


def test_the_model_file_must_be_the_one_that_the_ledger_names(run, tmp_path):
    other = vitrail.train("moments", out=str(tmp_path / "other"), **{**MOMENTS, "seed": 5})
    tree, theirs = (store.load(folder / "model.safetensors") for folder in (run.folder, other.folder))
    store.save(run.folder / "model.safetensors", {**tree, "model": theirs["model"]})
    with pytest.raises(Malformed, match="is not the model that its closing entry names"):
        read_run_ledger(run.folder)
    about = {k: v for k, v in tree["about"].items() if k != "ledger"}
    store.save(run.folder / "model.safetensors", {**tree, "about": about})
    with pytest.raises(Malformed, match="does not have"):
        read_run_ledger(run.folder)
