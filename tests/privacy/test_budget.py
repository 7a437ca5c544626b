"""A client's budget is shared by all runs, identified by the data's name, and never exceeded."""

import json
import re
from dataclasses import replace

import pytest

from tests.federation import RUN, digits, quick, shares
from vitrail.engines.rounds import Federation, run_round
from vitrail.engines.simulation import SimulatedClients, SimulationEngine
from vitrail.privacy.accounting import epsilon, multiplier_for
from vitrail.privacy.budget import Budget
from vitrail.privacy.mechanism import Noise
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRAIL_HOME", str(tmp_path / "home"))


def mechanism(multiplier=3.0, **changed):
    found = quick("prism", privacy="mask-update", noise_multiplier=multiplier).mechanism
    return replace(found, **changed)


def spend(budget, times, found=None):
    for _ in range(times):
        budget.charge(found or mechanism(), RUN, 0)


def test_answers_are_refused_when_the_budget_is_spent_and_not_before():
    budget, fits = Budget("scans", 5.0, 1e-5), 0
    while epsilon([(Noise(3.0), fits + 1)], 1e-5) <= 5.0:
        fits += 1
    spend(budget, fits)
    with pytest.raises(
        VitrailError, match=r"spent up to .* would make it .*; one reply of ε = (\S+) would still fit"
    ) as e:
        spend(budget, 1)
    left = float(re.search(r"reply of ε = (\S+)", str(e.value))[1])
    smaller = mechanism(multiplier_for(lambda m: [(Noise(m), 1)], 0.95 * left, 1e-5))
    budget.check(smaller)  # the suggested ε does fit
    assert len(budget.spent()) == fits
    assert budget.spent()[-1]["epsilon_in_all"] == pytest.approx(epsilon([(Noise(3.0), fits)], 1e-5))


def test_other_runs_and_other_noise_share_the_same_budget():
    spend(Budget("scans", 9.0, 1e-5), 2)
    Budget("scans", 9.0, 1e-5).charge(mechanism(5.0), b"another run, yes", 0)
    total = epsilon([(Noise(3.0), 2), (Noise(5.0), 1)], 1e-5)
    assert Budget("scans", 9.0, 1e-5).spent()[-1]["epsilon_in_all"] == pytest.approx(total)
    assert Budget("other scans", 9.0, 1e-5).spent() == []


def test_answers_without_noise_or_of_another_unit_are_not_charged():
    budget = Budget("scans", 9.0, 1e-5)
    with pytest.raises(VitrailError, match="adds no noise"):
        budget.charge(None, RUN, 0)
    with pytest.raises(VitrailError, match="assumption"):
        budget.charge(mechanism(assumed="something"), RUN, 0)
    spend(budget, 1)
    with pytest.raises(VitrailError, match="cannot be composed"):
        budget.charge(mechanism(unit="example"), RUN, 0)


def test_a_budget_file_is_private_and_a_changed_one_is_refused():
    budget = Budget("../scans of Zürich", 9.0, 1e-5)
    spend(budget, 2)
    assert budget.path.parent.name == "budgets"
    assert budget.path.stat().st_mode & 0o077 == 0
    entries = json.loads(budget.path.read_text())
    entries.pop(1)
    budget.path.write_text(json.dumps(entries))
    with pytest.raises(VitrailError, match="was changed"):
        budget.check(mechanism())


def rounds(method, folder, budget, n):
    indices = shares()
    fed, outcomes = Federation(0, method.server_init(Rng((5,)).child("server", "init"))), []
    simulated = SimulatedClients(method, RUN, Rng((5,)), indices, folder, budget)
    with SimulationEngine(simulated, digits().train) as engine:
        for _ in range(n):
            fed, outcome = run_round(method, fed, RUN, sorted(indices), engine.ask, Rng((5,)))
            outcomes.append(outcome)
    return outcomes


def test_a_client_refuses_a_round_beyond_its_budget_and_others_continue(tmp_path):
    method = quick("prism", privacy="mask-update", noise_multiplier=3.0)
    Budget("digits/client-1", 3.15, 1e-5).charge(mechanism(2.0), RUN, 0)  # charged by an earlier run
    outcomes = rounds(method, tmp_path / "clients", Budget("digits", 3.15, 1e-5), 3)
    assert [len(o.replied) for o in outcomes] == [3, 3, 2]
    assert "budget of ε = 3.15" in outcomes[2].excluded["client-1"]
    assert len(Budget("digits/client-1", 3.15, 1e-5).spent()) == 3


def test_a_release_that_is_made_once_is_charged_once(tmp_path):
    method = quick("prism", privacy="moments", epsilon=4.0)
    outcomes = rounds(method, tmp_path / "clients", Budget("digits", 4.5, 1e-5), 3)
    assert all(len(o.replied) == 3 for o in outcomes)
    assert len(Budget("digits/client-0", 4.5, 1e-5).spent()) == 1


def test_clients_with_a_budget_refuse_a_run_that_is_not_private(tmp_path):
    (outcome,) = rounds(quick("prism"), tmp_path / "clients", Budget("digits", 5.0, 1e-5), 1)
    assert outcome.replied == []
    assert "adds no noise" in outcome.excluded["client-0"]
