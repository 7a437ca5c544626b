"""Privacy claims: exported models, noise sources, simulations, and selection by held-out images."""

import pytest

import vitrail
from tests.privacy.ledgers import DP_SGD, GAN, MOMENTS, SMALL
from vitrail.data import PARTITIONS
from vitrail.experiment.deployment.plan import deployment_plan
from vitrail.experiment.deployment.server import run_settings
from vitrail.experiment.evaluate import evaluate_stored
from vitrail.experiment.plan import prepare
from vitrail.experiment.run_ledger import opening_claim
from vitrail.experiment.settings import resolve
from vitrail.privacy.checked_ledger import read_run_ledger
from vitrail.privacy.claims import PER_COPY
from vitrail.privacy.ledger import read
from vitrail.utils.errors import VitrailError


@pytest.mark.parametrize("method", ["psfedgan", "fullgan"])
def test_a_classifier_trained_on_the_servers_images_is_not_private(method, tmp_path):
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
    claim = vitrail.load_classifier(run.folder).about["privacy"]
    assert claim.startswith("not private: it was trained on the ")
    alone = vitrail.train(method, out=str(tmp_path / "alone"), **{**how, "server_fraction": 0.0})
    assert "ε = 1 at" in vitrail.load_classifier(alone.folder).about["privacy"], (
        "without such images it is computed from D"
    )


FACTS = {"shape": [1, 8, 8], "classes": ["a", "b"], "names": ["n", "s"], "nonce": "00"}


def test_in_a_deployment_noise_comes_from_the_operating_system_by_default(tmp_path):
    settings = run_settings({"settings": "moments clients=2 size=8", "out": str(tmp_path / "x")})
    assert settings.noise_source == "os"
    found = opening_claim(deployment_plan(settings, FACTS))
    assert (found["private"], found["simulated"]) == (True, False)
    assert found["trust"].startswith("no one: ")


def test_a_deployment_with_noise_from_the_seed_is_not_private(tmp_path):
    settings = run_settings({"settings": "moments clients=2 size=8 noise_source=seed", "out": str(tmp_path / "x")})
    found = opening_claim(deployment_plan(settings, FACTS))
    assert found["private"] is False
    assert "which the server knows" in found["says"]


def test_a_deployment_that_started_with_noise_from_the_seed_continues_with_it(tmp_path):
    settings = resolve("moments", {"clients": 2, "size": 8, "noise_source": "seed", "out": str(tmp_path)})
    (tmp_path / "settings.toml").write_text(vitrail.experiment.settings.to_toml(settings, "0.1.0"))
    assert run_settings({"settings": "moments clients=2 size=8", "out": str(tmp_path)}).noise_source == "seed"


@pytest.mark.parametrize(("source", "words"), [("seed", "noise from the seed"), ("os", "the operating system")])
def test_the_claim_of_a_simulation_states_that_it_is_one(source, words):
    found = opening_claim(prepare(resolve("moments", {**SMALL, "noise_source": source, "out": "-"})))
    assert found["simulated"] is True
    assert found["says"].startswith("simulated, with noise from")
    assert words in found["says"]
    assert ("anyone who knows the seed" in found["trust"]) == (source == "seed")


def test_a_private_run_stores_no_best_round_and_records_what_was_selected(tmp_path):
    how = {**SMALL, "eval_every": 1, "rounds": 2, "local_steps": 1, "batch_size": 10}
    run = vitrail.train("moments", out=str(tmp_path / "private"), **how)
    assert any("fd" in row for row in run.rows)
    assert not (run.folder / "best.safetensors").exists()
    selection = read(run.folder / "ledger.json")[0]["selection"]
    assert "no round was selected" in selection
    assert "held-out images of the same data, without noise" in selection
    with pytest.raises(VitrailError, match="stored no best round"):
        evaluate_stored(run.folder, best=True)
    open_ = vitrail.train("moments", out=str(tmp_path / "open"), privacy="none", **how)
    assert (open_.folder / "best.safetensors").exists()
    assert "selection" not in read(open_.folder / "ledger.json")[0]


def test_the_claim_is_per_copy_where_the_partition_repeats_images(monkeypatch):
    monkeypatch.setitem(PARTITIONS._added, "all-to-all", (lambda request: [request.pool] * request.clients, ""))

    def claim_of(partition, method="moments", **how):
        return opening_claim(prepare(resolve(method, {**SMALL, "out": "-", "partition": partition, **how})))["says"]

    without = claim_of("iid")
    assert "copy" not in without
    assert without.endswith("(moments, example-level)")
    assert claim_of("bootstrap:0.5") == claim_of("all-to-all") == f"{without}; {PER_COPY}"
    client_level = claim_of("bootstrap:0.5", "fedgan", privacy="dp-fedavg", epsilon=8.0)
    assert client_level.endswith("(dp-fedavg, client-level)"), "copies do not change what a client is"
    assert claim_of("bootstrap:0.5", "fedgan") == "not private: no noise was added"


def test_the_model_and_a_checked_ledger_have_the_claim_per_copy(tmp_path):
    run = vitrail.train("moments", out=str(tmp_path / "run"), partition="bootstrap:0.5", **MOMENTS)
    checked = read_run_ledger(run.folder)  # raises if its words do not match its records
    claims = [entry["says"] for entry in checked.entries if "says" in entry]
    assert len(claims) == 2
    assert all(claim.endswith(PER_COPY) for claim in (*claims, vitrail.load(run.folder).about["privacy"]))
