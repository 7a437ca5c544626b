"""The ledger of a run that is interrupted, resumed or repeated."""

import json

import pytest

import vitrail
from tests.privacy.ledgers import MOMENTS, rechained, unsigned
from vitrail.experiment.run_ledger import _selection
from vitrail.privacy.checked_ledger import read_run_ledger
from vitrail.privacy.ledger import read
from vitrail.utils import state as store
from vitrail.utils.errors import Malformed, VitrailError


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


class Stops(vitrail.Callback):
    """Interrupts a run after its second round."""

    def on_run_start(self, *_): ...
    def on_reply(self, *_): ...
    def on_run_end(self, *_): ...
    def on_round_end(self, outcome, _):
        if outcome.round == 1:
            raise KeyboardInterrupt


@pytest.fixture
def interrupted(tmp_path):
    how = {**MOMENTS, "rounds": 3, "privacy": "mask-update", "epsilon": 9.8}
    with pytest.raises(KeyboardInterrupt):
        vitrail.train("prism", out=str(tmp_path / "run"), callbacks=[Stops()], **how)
    return tmp_path / "run"


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_run_whose_ledger_was_cut_or_removed_cannot_be_resumed(interrupted, left):
    path = interrupted / "ledger.json"
    entries = json.loads(path.read_text())
    path.write_text(json.dumps(entries[:left])) if left else path.unlink()
    with pytest.raises(VitrailError, match="it was removed, cut or replaced"):
        vitrail.resume(interrupted)
    path.write_text(json.dumps(entries))
    assert vitrail.resume(interrupted).privacy.startswith("simulated, with noise from the seed: ε = 9.8")


def test_a_run_of_0_1_0_is_resumed_and_its_ledger_states_which_keys_signed(interrupted):
    unsigned(interrupted / "ledger.json")
    checkpoint = store.load(interrupted / "checkpoint.safetensors")
    store.save(
        interrupted / "checkpoint.safetensors", {k: v for k, v in checkpoint.items() if k != "ledger"}, private=True
    )
    run = vitrail.resume(interrupted)
    checked = read_run_ledger(run.folder)
    assert "no key at first (version 0.1.0)" in checked.signed
    assert [e["kind"] for e in checked.entries] == ["opening", "round", "round", "round", "closing"]
    entries = json.loads((run.folder / "ledger.json").read_text())
    entries[1]["asked"] = []
    (run.folder / "ledger.json").write_text(json.dumps(entries))
    with pytest.raises(Malformed, match="was changed"):
        read_run_ledger(run.folder)


def test_the_closing_entry_records_measurements_that_were_not_planned(interrupted):
    settings = interrupted / "settings.toml"
    settings.write_text(settings.read_text().replace("eval_every = 0", "eval_every = 1"))
    opening_, *_, closing = read(vitrail.resume(interrupted).folder / "ledger.json")
    assert "nothing was measured" in opening_["selection"]
    assert "held-out images of the same data, without noise" in closing["selection"]


def test_selection_by_held_out_images_is_mentioned_only_if_there_are_some():
    assert _selection(True, 0).endswith("nothing was measured on held-out images")
    assert "selecting settings or runs" in _selection(False, 10)


def test_the_same_run_under_another_key_has_the_same_hashes(run, tmp_path):
    again = vitrail.train(str(run.folder / "settings.toml"), out=str(tmp_path / "again"))
    one, two = (read(folder / "ledger.json") for folder in (run.folder, again.folder))
    assert [e["hash"] for e in one] == [e["hash"] for e in two]
    assert one[0]["key"] != two[0]["key"]
