"""What a run claims of its privacy is what it delivers: starts, products, noise sources and selection are all counted."""

import json
import shutil

import pytest

import vitrail
from vitrail.experiment.deployment.plan import deployment_plan
from vitrail.experiment.deployment.server import run_settings
from vitrail.experiment.evaluate import evaluate_stored
from vitrail.experiment.plan import prepare
from vitrail.experiment.settings import resolve
from vitrail.privacy.accounting import epsilon
from vitrail.privacy.checked_ledger import read_run_ledger
from vitrail.privacy.claims import read_spent
from vitrail.privacy.ledger import Ledger, read
from vitrail.privacy.run_ledger import opening
from vitrail.utils import state as store
from vitrail.utils.errors import VitrailError
from vitrail.utils.keys import Key

SMALL = {"data": "digits", "size": 8, "clients": 2, "rounds": 1, "workers": 1, "grids": 0, "eval_every": 0}
GAN = {**SMALL, "width": 4, "latent_dim": 8, "batch_size": 64, "d_norm": "group"}
DP_SGD = {"privacy": "dp-sgd", "epsilon": 1.0}


@pytest.fixture(scope="module")
def starts(tmp_path_factory):
    """Finished runs of fedgan to start from: not private, private by example, private by client."""
    root = tmp_path_factory.mktemp("starts")
    kinds = {"plain": {}, "examples": DP_SGD, "clients": {"privacy": "dp-fedavg", "epsilon": 5.0}}
    for name, more in kinds.items():
        vitrail.train("fedgan", out=str(root / name), **GAN, **more)
    return root


def claimed(start, **more):
    """The claim of a run with DP-SGD at ε = 1 that starts from another."""
    return opening(prepare(resolve("fedgan", {**GAN, **DP_SGD, "init_from": str(start), "out": "-", **more})))


def test_a_start_that_was_not_private_makes_the_new_run_not_private(starts, tmp_path):
    run = vitrail.train("fedgan", out=str(tmp_path / "r2"), start=str(starts / "plain"), **GAN, **DP_SGD)
    first, *_, last = read(run.folder / "ledger.json")
    assert [first["private"], last["private"]] == [False, False]
    assert run.privacy.startswith("not private: it started from plain, which is not private")
    assert vitrail.load(run.folder).about["privacy"] == run.privacy
    assert (claimed(run.folder))["private"] is False, "nor does a third run that starts from the second"


def test_a_private_start_is_composed_with_the_new_run(starts):
    alone = opening(prepare(resolve("fedgan", {**GAN, **DP_SGD, "out": "-"})))
    both = claimed(starts / "examples", seed=1)
    assert both["private"] is True
    own = read_spent(alone["spent"])
    assert both["epsilon"] == pytest.approx(epsilon([*own, *own], both["delta"]), rel=1e-6)
    assert alone["epsilon"] < both["epsilon"] < 2 * alone["epsilon"]
    assert "together with the run that it started from; by itself 1" in both["says"]


def test_a_start_whose_noise_follows_from_the_same_seed_is_no_composition(starts, tmp_path):
    """The same seed draws the same noise, and the difference of two releases would have none."""
    found = claimed(starts / "examples")
    assert not found["private"]
    assert "whose noise follows from the same seed: use another than seed=0, or noise_source=os" in found["says"]
    second = vitrail.train("fedgan", out=str(tmp_path / "2"), start=str(starts / "examples"), seed=1, **GAN, **DP_SGD)
    assert not claimed(second.folder, seed=0)["private"], "nor may a third run draw the noise of the first again"
    assert claimed(second.folder, seed=2)["private"]


def test_a_start_with_noise_from_the_seed_is_named_whatever_the_new_noise_is(starts):
    found = claimed(starts / "examples", entropy="os")
    assert found["private"]
    assert found["says"].startswith("simulated, with noise from the seed: ")


def test_a_start_whose_state_is_not_the_one_its_ledger_names_cannot_be_verified(starts, tmp_path):
    copy = tmp_path / "swapped"
    shutil.copytree(starts / "examples", copy)
    state = store.load(starts / "plain" / "checkpoint.safetensors")
    store.save(copy / "checkpoint.safetensors", state, private=True)
    assert "names another state than its checkpoint has" in claimed(copy, seed=1)["says"]


def test_a_start_that_protects_another_unit_cannot_be_added_up(starts):
    found = claimed(starts / "clients", seed=1)
    assert not found["private"]
    assert "which protects clients (replace one), and this run examples (add or remove one)" in found["says"]


def test_a_start_whose_ledger_is_missing_changed_or_unsigned_cannot_be_verified(starts, tmp_path):
    def changed(name, change):
        copy = tmp_path / name
        shutil.copytree(starts / "examples", copy)
        change(copy / "ledger.json")
        found = claimed(copy)
        assert found["private"] is False
        return found["says"]

    assert "has no ledger.json" in changed("missing", lambda path: path.unlink())
    assert "was changed" in changed("edited", lambda path: path.write_text(path.read_text().replace("Poisson", "none")))
    assert "without signatures" in changed("unsigned", unsigned)


def unsigned(path):
    """A ledger as version 0.1.0 wrote it: chained, and signed by nobody."""
    entries = [{k: v for k, v in e.items() if k not in ("key", "signature")} for e in json.loads(path.read_text())]
    path.write_text(json.dumps(entries))


@pytest.mark.parametrize("method", ["psfedgan", "fullgan"])
def test_a_classifier_that_saw_the_servers_images_without_noise_says_so(method, tmp_path):
    tiny = {
        "classifier_rounds": 1,
        "classifier_steps": 1,
        "d_width": 4,
        "steps_per_message": 1,
        "rounds": 2,
        "batch_size": 8,
    }
    how = {**GAN, **tiny, **DP_SGD, "server_fraction": 0.1}
    how.pop("d_norm")
    run = vitrail.train(method, out=str(tmp_path / "run"), **how)
    assert "ε = 1 at" in vitrail.load(run.folder).about["privacy"]
    said = vitrail.load_classifier(run.folder).about["privacy"]
    assert said.startswith("not private: it was trained on the ")
    alone = vitrail.train(method, out=str(tmp_path / "alone"), **{**how, "server_fraction": 0.0})
    assert "ε = 1 at" in vitrail.load_classifier(alone.folder).about["privacy"], "without such images it follows from D"


FACTS = {"shape": [1, 8, 8], "classes": ["a", "b"], "names": ["n", "s"], "nonce": "00"}


def test_in_a_deployment_noise_comes_from_the_operating_system_unless_told_otherwise(tmp_path):
    settings = run_settings({"settings": "moments clients=2 size=8", "out": str(tmp_path / "x")})
    assert settings.entropy == "os"
    found = opening(deployment_plan(settings, FACTS))
    assert (found["private"], found["simulated"]) == (True, False)
    assert found["trust"].startswith("nobody")


def test_in_a_deployment_noise_from_the_seed_is_not_private(tmp_path):
    settings = run_settings({"settings": "moments clients=2 size=8 noise_source=seed", "out": str(tmp_path / "x")})
    found = opening(deployment_plan(settings, FACTS))
    assert found["private"] is False
    assert "which the server knows" in found["says"]


def test_a_deployment_that_was_begun_with_noise_from_the_seed_continues_with_it(tmp_path):
    begun = resolve("moments", {"clients": 2, "size": 8, "noise_source": "seed", "out": str(tmp_path)})
    (tmp_path / "settings.toml").write_text(vitrail.experiment.settings.to_toml(begun, "0.1.0"))
    assert run_settings({"settings": "moments clients=2 size=8", "out": str(tmp_path)}).entropy == "seed"


@pytest.mark.parametrize(("entropy", "words"), [("seed", "noise from the seed"), ("os", "the operating system")])
def test_a_simulation_says_that_it_is_one(entropy, words):
    found = opening(prepare(resolve("moments", {**SMALL, "noise_source": entropy, "out": "-"})))
    assert found["simulated"] is True
    assert found["says"].startswith("simulated, with noise from")
    assert words in found["says"]
    assert ("anyone who knows the seed" in found["trust"]) == (entropy == "seed")


def test_a_private_run_keeps_no_best_round_and_its_ledger_says_what_was_selected(tmp_path):
    how = {**SMALL, "eval_every": 1, "rounds": 2, "local_steps": 1, "batch_size": 10}
    run = vitrail.train("moments", out=str(tmp_path / "private"), **how)
    assert any("fd" in row for row in run.rows)
    assert not (run.folder / "best.safetensors").exists()
    selection = read(run.folder / "ledger.json")[0]["selection"]
    assert "none was chosen" in selection
    assert "held-out images of the same data, without noise" in selection
    with pytest.raises(VitrailError, match="kept no best round"):
        evaluate_stored(run.folder, best=True)
    open_ = vitrail.train("moments", out=str(tmp_path / "open"), privacy="none", **how)
    assert (open_.folder / "best.safetensors").exists()
    assert "selection" not in read(open_.folder / "ledger.json")[0]


# -- the ledger ------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    return vitrail.train("moments", out=str(tmp_path / "run"), **{**SMALL, "local_steps": 1, "batch_size": 10})


def rechained(path, change, **how):
    """Rewrite a ledger's entries and chain them anew, as a forger would."""
    entries = json.loads(path.read_text("utf-8"))
    path.unlink()
    forged = Ledger(path, **how)
    for entry in entries:
        change(entry)
        forged.write(**{k: v for k, v in entry.items() if k not in ("n", "previous", "hash", "key", "signature")})
        if not how and "signature" in entry:
            forged.entries[-1] |= {"key": entry["key"], "signature": entry["signature"]}
    path.write_text(json.dumps(forged.entries))


def smaller(entry):
    if "epsilon" in entry:
        entry["says"] = entry["says"].replace("ε = 9.8", "ε = 0.1")
        entry["epsilon"] = 0.1


def test_a_ledger_is_signed_and_says_what_that_proves(run):
    checked = read_run_ledger(run.folder)
    (key,) = {entry["key"] for entry in checked.entries}
    assert checked.recomputed
    assert key in checked.signed
    assert "Not that the code which ran adds this noise" in checked.proves
    checked.check_key(key)
    assert not (run.folder / "run.key").exists(), "after the last entry the key is gone"


def test_a_forged_ledger_that_was_chained_anew_is_refused(run):
    (run.folder / "model.safetensors").unlink()  # the forger replaces the model file too
    rechained(run.folder / "ledger.json", smaller)
    with pytest.raises(vitrail.utils.errors.Malformed, match="no valid signature"):
        read_run_ledger(run.folder)


def test_a_forged_ledger_that_was_signed_by_another_key_states_another_epsilon_than_it_records(run):
    (run.folder / "model.safetensors").unlink()
    key = read_run_ledger(run.folder).entries[0]["key"]
    rechained(run.folder / "ledger.json", smaller, key=lambda: Key(bytes(32)))
    with pytest.raises(vitrail.utils.errors.Malformed, match=r"states ε = 0.1; .* give 9.8"):
        read_run_ledger(run.folder)
    entries = json.loads((run.folder / "ledger.json").read_text())
    assert entries[0]["key"] != key


def test_a_ledger_of_another_key_is_refused_by_whoever_knows_the_right_one(run):
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
    checked = read_run_ledger(run.folder)  # it is consistent: only the key shows that it is not the run's
    with pytest.raises(vitrail.utils.errors.Malformed, match="of another party, or was rewritten"):
        checked.check_key(key)


def test_a_closing_entry_must_count_the_answers_that_its_rounds_record(tmp_path):
    run = vitrail.train("prism", privacy="mask-update", epsilon=9.8, out=str(tmp_path / "run"),
                        **{**SMALL, "rounds": 2, "local_steps": 1, "batch_size": 10})  # fmt: skip
    (run.folder / "model.safetensors").unlink()

    def fewer(entry):
        if entry["kind"] == "closing":
            entry["spent"][-1]["answers"] = 1

    rechained(run.folder / "ledger.json", fewer, key=lambda: Key(bytes(32)))
    with pytest.raises(vitrail.utils.errors.Malformed, match="counts 1 answers"):
        read_run_ledger(run.folder)


def forged(run, change, more=()):
    """Why a ledger is refused that somebody else has changed, extended and signed with a key of his own."""
    (run.folder / "model.safetensors").unlink()
    path, key = run.folder / "ledger.json", Key(bytes(32))
    rechained(path, change, key=lambda: key)
    ledger = Ledger(path, key=lambda: key)
    for entry in more:
        ledger.write(**entry)
    with pytest.raises(vitrail.utils.errors.Malformed) as refused:
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
            entry["says"] = "ε = 0.01 at δ = 1e-05 for one picture (formerly " + entry["says"] + ")"

    assert "in other words" in forged(run, bolder)


def test_more_rounds_than_were_planned_are_refused(run):
    entries = read(run.folder / "ledger.json")
    (run.folder / "ledger.json").write_text(json.dumps(entries[:2]))
    again = {"kind": "round", "round": 0, "asked": "all"}
    assert "not an opening, rounds in their order" in forged(run, lambda _: None, [again])


def test_a_secure_sum_that_was_asked_for_twice_counts_twice_and_is_read(tmp_path):
    """After a void round everyone is asked again, with new noise: more answers than were planned."""

    how = {
        **SMALL,
        "clients": 3,
        "rounds": 5,
        "local_steps": 1,
        "batch_size": 10,
        "secagg_threshold": 3,
        "client_dropout": 0.1,
    }
    run = vitrail.train("moments", out=str(tmp_path / "run"), **how)
    void = [bool(row["void"]) for row in run.rows].index(False)  # rounds before the sum was opened
    closing = read_run_ledger(run.folder).entries[-1]
    assert closing["max_replies"] == void + 1 > 1
    assert closing["epsilon"] > read(run.folder / "ledger.json")[0]["epsilon"]


def test_a_model_without_a_closing_entry_is_refused(run):
    path = run.folder / "ledger.json"
    entries = json.loads(path.read_text())
    path.write_text(json.dumps(entries[:-1]))
    tree = store.load(run.folder / "model.safetensors")
    about = {**tree["about"], "ledger": entries[-2]["hash"]}
    store.save(run.folder / "model.safetensors", {**tree, "about": about})
    with pytest.raises(vitrail.utils.errors.Malformed, match="no closing entry names it"):
        read_run_ledger(run.folder)


def test_a_closing_entry_claims_no_more_than_the_opening(run):
    def opening_not(entry):
        if entry["kind"] == "opening":
            entry["private"] = False

    assert "its opening entry does not" in forged(run, opening_not)


def test_a_closing_entry_keeps_the_releases_of_the_run_before(run):
    def one_more(entry):
        if entry["kind"] == "opening":
            entry["spent"].insert(0, dict(entry["spent"][0]))
            entry["epsilon"] = epsilon(read_spent(entry["spent"]), entry["delta"])
            entry["says"] = entry["says"].replace("ε = 9.8", f"ε = {entry['epsilon']:.3g}")

    assert "its rounds and opening entry give" in forged(run, one_more)


def test_a_finished_run_that_is_resumed_keeps_its_ledger_and_model(run):
    before = [(run.folder / name).read_bytes() for name in ("ledger.json", "model.safetensors")]
    vitrail.resume(run.folder)
    assert [(run.folder / name).read_bytes() for name in ("ledger.json", "model.safetensors")] == before


def test_a_finished_run_of_0_1_0_that_is_resumed_has_one_closing_entry(run):
    unsigned(run.folder / "ledger.json")
    rechained(run.folder / "ledger.json", lambda e: [e.pop(k, None) for k in ("models", "state")])
    vitrail.resume(run.folder)
    kinds = [entry["kind"] for entry in read_run_ledger(run.folder).entries]
    assert kinds.count("closing") == 1


def test_the_model_file_must_be_the_one_that_the_ledger_names(run, tmp_path):
    other = vitrail.train(
        "moments", out=str(tmp_path / "other"), **{**SMALL, "local_steps": 1, "batch_size": 10, "seed": 5}
    )
    tree, theirs = (store.load(folder / "model.safetensors") for folder in (run.folder, other.folder))
    store.save(run.folder / "model.safetensors", {**tree, "model": theirs["model"]})
    with pytest.raises(vitrail.utils.errors.Malformed, match="is not the model that its closing entry names"):
        read_run_ledger(run.folder)
    about = {k: v for k, v in tree["about"].items() if k != "ledger"}
    store.save(run.folder / "model.safetensors", {**tree, "about": about})
    with pytest.raises(vitrail.utils.errors.Malformed, match="does not have"):
        read_run_ledger(run.folder)


class Stops:
    """Interrupts a run after its second round."""

    def on_run_start(self, *_): ...
    def on_reply(self, *_): ...
    def on_run_end(self, *_): ...
    def on_round_end(self, outcome, _):
        if outcome.round == 1:
            raise KeyboardInterrupt


@pytest.fixture
def interrupted(tmp_path):
    how = {**SMALL, "rounds": 3, "local_steps": 1, "batch_size": 10, "privacy": "mask-update", "epsilon": 9.8}
    with pytest.raises(KeyboardInterrupt):
        vitrail.train("prism", out=str(tmp_path / "run"), callbacks=[Stops()], **how)
    return tmp_path / "run"


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_run_whose_ledger_was_cut_or_removed_is_not_resumed(interrupted, kept):
    path = interrupted / "ledger.json"
    entries = json.loads(path.read_text())
    path.write_text(json.dumps(entries[:kept])) if kept else path.unlink()
    with pytest.raises(VitrailError, match="it was removed, cut or replaced"):
        vitrail.resume(interrupted)
    path.write_text(json.dumps(entries))
    assert vitrail.resume(interrupted).privacy.startswith("simulated, with noise from the seed: ε = 9.8")


def test_a_run_that_version_0_1_0_began_is_resumed_and_its_ledger_says_who_signed(interrupted):
    unsigned(interrupted / "ledger.json")
    checkpoint = store.load(interrupted / "checkpoint.safetensors")
    store.save(
        interrupted / "checkpoint.safetensors", {k: v for k, v in checkpoint.items() if k != "ledger"}, private=True
    )
    run = vitrail.resume(interrupted)
    checked = read_run_ledger(run.folder)
    assert "nobody at first (version 0.1.0)" in checked.signed
    assert [e["kind"] for e in checked.entries] == ["opening", "round", "round", "round", "closing"]
    entries = json.loads((run.folder / "ledger.json").read_text())
    entries[1]["asked"] = []
    (run.folder / "ledger.json").write_text(json.dumps(entries))
    with pytest.raises(vitrail.utils.errors.Malformed, match="was changed"):
        read_run_ledger(run.folder)


def test_the_closing_entry_says_what_was_measured_although_it_was_not_planned(interrupted):
    settings = interrupted / "settings.toml"
    settings.write_text(settings.read_text().replace("measure_every = 0", "measure_every = 1"))
    opening_, *_, closing = read(vitrail.resume(interrupted).folder / "ledger.json")
    assert "nothing was measured" in opening_["selection"]
    assert "held-out images of the same data, without noise" in closing["selection"]


def test_the_same_run_under_another_key_has_the_same_hashes(run, tmp_path):
    again = vitrail.train(str(run.folder / "settings.toml"), out=str(tmp_path / "again"))
    one, two = (read(folder / "ledger.json") for folder in (run.folder, again.folder))
    assert [e["hash"] for e in one] == [e["hash"] for e in two]
    assert one[0]["key"] != two[0]["key"]
