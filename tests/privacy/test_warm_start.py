"""Runs that start from an earlier run: their claim covers both, or they are not private."""

import shutil

import pytest

import vitrail
from tests.privacy.ledgers import DP_SGD, GAN, unsigned
from vitrail.experiment.plan import prepare
from vitrail.experiment.run_ledger import opening_claim
from vitrail.experiment.settings import resolve
from vitrail.privacy.accounting import epsilon
from vitrail.privacy.claims import read_spent
from vitrail.privacy.ledger import read
from vitrail.utils import state as store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def starts(tmp_path_factory):
    """Finished runs of fedgan to start from: not private, example-level private, client-level private."""
    root = tmp_path_factory.mktemp("starts")
    kinds = {"plain": {}, "examples": DP_SGD, "clients": {"privacy": "dp-fedavg", "epsilon": 5.0}}
    for name, more in kinds.items():
        vitrail.train("fedgan", out=str(root / name), **GAN, **more)
    return root


def claimed(start, **more):
    """The claim of a run with DP-SGD at ε = 1 that starts from another."""
    return opening_claim(prepare(resolve("fedgan", {**GAN, **DP_SGD, "init_from": str(start), "out": "-", **more})))


def test_a_run_that_starts_from_a_run_that_is_not_private_is_not_private(starts, tmp_path):
    run = vitrail.train("fedgan", out=str(tmp_path / "r2"), init_from=str(starts / "plain"), **GAN, **DP_SGD)
    first, *_, last = read(run.folder / "ledger.json")
    assert [first["private"], last["private"]] == [False, False]
    assert run.privacy.startswith("not private: it started from plain, which is not private")
    assert vitrail.load(run.folder).about["privacy"] == run.privacy
    assert (claimed(run.folder))["private"] is False, "nor does a third run that starts from the second"


def test_a_private_start_is_composed_with_the_new_run(starts):
    alone = opening_claim(prepare(resolve("fedgan", {**GAN, **DP_SGD, "out": "-"})))
    both = claimed(starts / "examples", seed=1)
    assert both["private"] is True
    own = read_spent(alone["spent"])
    assert both["epsilon"] == pytest.approx(epsilon([*own, *own], both["delta"]), rel=1e-6)
    assert alone["epsilon"] < both["epsilon"] < 2 * alone["epsilon"]
    assert "together with the run that it started from; by itself 1" in both["says"]


def test_a_start_with_noise_from_the_same_seed_is_not_composed(starts, tmp_path):
    """The same seed draws the same noise, and the difference of two releases would have none."""
    found = claimed(starts / "examples")
    assert not found["private"]
    assert "whose noise is derived from the same seed: use another than seed=0, or noise_source=os" in found["says"]
    second = vitrail.train(
        "fedgan", out=str(tmp_path / "2"), init_from=str(starts / "examples"), seed=1, **GAN, **DP_SGD
    )
    assert not claimed(second.folder, seed=0)["private"], "nor may a third run use the noise of the first again"
    assert claimed(second.folder, seed=2)["private"]


def test_a_claim_names_noise_from_the_seed_of_the_run_it_starts_from(starts):
    found = claimed(starts / "examples", noise_source="os")
    assert found["private"]
    assert found["says"].startswith("simulated, with noise from the seed: ")


def test_a_start_with_another_state_than_its_ledger_names_is_not_private(starts, tmp_path):
    copy = tmp_path / "swapped"
    shutil.copytree(starts / "examples", copy)
    state = store.load(starts / "plain" / "checkpoint.safetensors")
    store.save(copy / "checkpoint.safetensors", state, private=True)
    assert "names another state than its checkpoint has" in claimed(copy, seed=1)["says"]


def test_a_start_that_protects_another_unit_cannot_be_composed(starts):
    found = claimed(starts / "clients", seed=1)
    assert not found["private"]
    assert "which protects clients (replace one), and this run examples (add or remove one)" in found["says"]


def test_a_start_with_a_missing_changed_or_unsigned_ledger_is_not_private(starts, tmp_path):
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
