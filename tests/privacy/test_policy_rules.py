"""The rules of a policy: each refuses alone, and keys that are set together refuse what either refuses."""

from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest

from tests.engines.secagg.adds import Adds
from tests.federation import quick
from vitrail.methods.base import Task
from vitrail.privacy.policy import KEYS, from_config


@cache
def runs():
    """Runs of all kinds by name: a method, and the number of answers so far."""

    def of(name, source="os", secure=0, given=0, **settings):
        method = quick(name, **settings)
        return replace(method, task=replace(method.task, noise_source=source, secagg_threshold=secure)), given

    return {
        "moments": of("moments", epsilon=4.0),
        "moments, weak": of("moments", epsilon=9.8),
        "moments, very weak": of("moments", noise_multiplier=0.2),
        "moments, almost no noise": of("moments", noise_multiplier=1e-6),
        "moments, seeded": of("moments", source="seed", epsilon=4.0),
        "moments, by shares": of("moments", secure=3, epsilon=4.0),
        "moments, by shares, again": of("moments", secure=3, epsilon=4.0, given=1),
        "moments, without noise": of("moments", privacy="none"),
        "prism, sums of masks": of("prism, moments", secure=2, coding="packed", epsilon=4.0),
        "mask-update": of("prism", privacy="mask-update", epsilon=4.0),
        "mask-update, one reply too many": of("prism", privacy="mask-update", epsilon=4.0, given=3),
        "paper": of("prism", privacy="paper", epsilon=0.1),
        "dp-sgd": of("psfedgan, dp-sgd", noise_multiplier=4.0),
        "dp-sgd, with labels": of("psfedgan, dp-sgd", noise_multiplier=4.0, label_sets="public"),
        "dp-fedavg": of("fedgan, dp-fedavg", epsilon=4.0),
        "sums without noise": (Adds(Task((1, 8, 8), 0, 3, 5, secagg_threshold=3, noise_source="os")), 0),
    }


def policy(**keys):
    """A policy from a node config, perhaps with a budget."""
    given = {key.replace("_", "-"): value for key, value in keys.items()}
    budget = bool(given.pop("budget", False))
    return replace(from_config(given), budget=budget)


def refused(demands, run):
    """The names of the rules that refuse a run."""
    method, given = runs()[run]
    return {name for name, refuses, _ in demands.rules(method, given) if refuses}


ONE_EACH = {  # rule: a policy, a run that it refuses by this rule alone, and one that it accepts
    "secagg": ({"require_secagg": True}, "moments", "prism, sums of masks"),
    "noise-source": ({"accept": "moments"}, "moments, seeded", "moments"),
    "noise": ({"max_epsilon": 5}, "moments, without noise", "moments"),
    "assumption": ({"max_epsilon": 1e9}, "paper", "moments"),
    "public": ({"least_unit": "example"}, "dp-sgd, with labels", "dp-sgd"),
    "accept": ({"accept": "mask-update"}, "moments", "mask-update"),
    "unit": ({"least_unit": "client"}, "moments", "mask-update"),
    "replies": ({"budget": 5}, "mask-update, one reply too many", "mask-update"),
    "epsilon": ({"max_epsilon": 5}, "moments, weak", "moments"),
}


def test_every_rule_is_tested():
    strict = policy(accept="moments", least_unit="client", require_secagg=True)
    assert {name for method, given in runs().values() for name, *_ in strict.rules(method, given)} == set(ONE_EACH)


@pytest.mark.parametrize("rule", ONE_EACH)
def test_each_rule_refuses_alone(rule):
    keys, bad, good = ONE_EACH[rule]
    assert refused(policy(**keys), bad) == {rule}
    assert refused(policy(**keys), good) == set()


STRICT = {  # a value of each key that requires something
    "accept": "moments",
    "least-unit": "client",
    "max-epsilon": 5.0,
    "require-secagg": True,
    "require-noise-source": "os",
    "budget": 5.0,
}
IMPLIED = {  # runs that any key refuses, and by which rule
    "moments, almost no noise": "epsilon",
    "moments, seeded": "noise-source",
    "moments, without noise": "noise",
    "sums without noise": "noise",
    "paper": "assumption",
    "dp-sgd, with labels": "public",
    "dp-fedavg": "epsilon",
    "mask-update, one reply too many": "replies",
    "moments, by shares, again": "replies",
}


def test_every_key_is_tested_in_pairs():
    assert {*STRICT, "max-delta"} == {*KEYS, "budget"}


@pytest.mark.parametrize("key", STRICT)
def test_any_key_implies_all_implied_rules(key):
    demands = policy(**{key: STRICT[key]})
    for run, rule in IMPLIED.items():
        assert rule in refused(demands, run), run


@pytest.mark.parametrize(("one", "other"), list(combinations(STRICT, 2)))
def test_two_keys_refuse_what_either_refuses(one, other):
    alone = [policy(**{key: STRICT[key]}) for key in (one, other)]
    both = policy(**{key: STRICT[key] for key in (one, other)})
    for run in runs():
        assert refused(both, run) == refused(alone[0], run) | refused(alone[1], run), run


def test_epsilon_is_computed_at_max_delta():
    weak = {"max-epsilon": 9.85}
    assert refused(policy(**weak), "moments, weak") == set()
    assert refused(policy(**weak, **{"max-delta": 1e-7}), "moments, weak") == {"epsilon"}
    assert refused(policy(**{"max-epsilon": 4.05}, **{"max-delta": 1e-5}), "moments") == set()


def test_more_is_accepted_only_where_it_is_named():
    """accept may name noise of other parties, or no noise; require-noise-source="any" is for trials."""
    assert refused(policy(accept="distributed-moments"), "moments, by shares") == set()
    assert refused(policy(accept="dp-fedavg"), "dp-fedavg") == set()
    assert refused(policy(accept="none", require_secagg=True), "sums without noise") == set()
    assert refused(policy(accept="none"), "moments, without noise") == set()
    assert refused(policy(accept="moments", require_noise_source="any"), "moments, seeded") == set()
    for number in ({"max_epsilon": 1e9}, {"least_unit": "example"}, {"budget": 5}):
        assert refused(policy(accept="none", **number), "moments, without noise") == {"noise"}


def test_accepting_any_noise_source_requires_nothing_else():
    loose = policy(require_noise_source="any")
    assert not any(refused(loose, run) for run in runs())
