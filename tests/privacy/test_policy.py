"""An owner's policy: the node itself refuses runs that guarantee less, whatever the server sends."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.engines.secagg.adds import Adds, secure
from tests.federation import PRIVATE, RUN, digits, federate, quick, same, shares
from vitrail.engines.rounds import Federation, run_round
from vitrail.engines.simulation import SimulatedClients
from vitrail.methods import METHODS
from vitrail.methods.base import Task
from vitrail.privacy.accounting import epsilon
from vitrail.privacy.budget import Budget
from vitrail.privacy.mechanism import MECHANISMS, Noise
from vitrail.privacy.policy import Policy, from_config
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.wire.message import LONGEST_REASON, Header, Kind, Message, decode, encode, make_part

ALL = [*PRIVATE, "prism, mask-update", "moments, alone", "moments, secure"]


def built(name, rounds=3, **settings):
    """A method with a mechanism, with noise from the operating system."""
    if name == "prism, mask-update":
        method = quick("prism", rounds, privacy="mask-update", epsilon=9.8, **settings)
    elif name.startswith("moments"):
        method = quick("moments", rounds, epsilon=9.8, **settings)
    else:
        method = quick(name, rounds, **settings)
    task = replace(method.task, noise_source="os", secagg_threshold=2 if name == "moments, secure" else 0)
    return replace(method, task=task)


def cost(method, delta=1e-5):
    """ε of all planned answers, by the accountant alone."""
    m = method.mechanism
    return epsilon([(m.noise, 1 if m.once else method.max_replies)], delta)


def accepted_as(name, method):
    """The mechanism as `accept` must name it."""
    return "distributed-moments" if name == "moments, secure" else method.mechanism.name


def refusal(policy, method, given=0):
    try:
        policy.check(method, given)
    except VitrailError as e:
        return str(e)
    return ""


@pytest.mark.parametrize("name", ALL)
def test_a_mechanism_is_accepted_at_its_epsilon_and_not_below(name):
    method = built(name)
    eps, accept = cost(method), (accepted_as(name, method),)
    assert math.isfinite(eps)
    for share, passes in ((0.01, False), (0.5, False), (0.999, False), (1.0, True), (1.001, True), (100.0, True)):
        reason = refusal(Policy(accept, max_epsilon=share * eps), method)
        assert (reason == "") == passes, (share, reason)
        if not passes:
            assert f"ε = {eps:.4g}" in reason
            assert f"at most {share * eps:g} at δ = 1e-05" in reason


@pytest.mark.parametrize("name", ALL)
def test_delta_is_the_owners_and_not_the_servers(name):
    """A server could claim a small ε by a large δ; the node computes ε at the owner's δ."""
    lax = built(name, delta=0.4)
    policy = Policy((accepted_as(name, lax),), max_epsilon=cost(lax, 0.4) * 1.01)
    assert refusal(policy, lax)
    assert not refusal(replace(policy, max_delta=0.4), lax)


@pytest.mark.parametrize("name", ALL)
def test_only_mechanisms_that_accept_names_are_accepted(name):
    method = built(name)
    mine = accepted_as(name, method)
    assert not refusal(Policy((mine,)), method)
    others = tuple(m for m in MECHANISMS if m != mine)
    assert f"its mechanism is {mine}" in refusal(Policy(others), method)


@pytest.mark.parametrize("name", ALL)
def test_example_level_mechanisms_are_refused_where_client_level_is_required(name):
    method = built(name)
    named = (accepted_as(name, method),)
    reason = refusal(Policy(named, least_unit="client"), method)
    assert (reason == "") == (method.mechanism.unit == "client")
    assert not refusal(Policy(named, least_unit="example"), method)


@pytest.mark.parametrize("name", ALL)
def test_noise_of_other_parties_counts_only_where_accept_names_it(name):
    method, own = built(name), cost(built(name)) * 1.0001
    reason = refusal(Policy(max_epsilon=own), method)
    mine = accepted_as(name, method)
    assert (mine in ("dp-fedavg", "distributed-moments")) == (method.mechanism.noised_by != "client")
    assert (f"counts only where accept names {mine}" in reason) == (method.mechanism.noised_by != "client")
    assert not refusal(Policy((mine,), max_epsilon=own), method)


@pytest.mark.parametrize("name", ALL)
def test_noise_from_the_seed_is_refused_because_the_server_knows_it(name):
    method = built(name)
    seeded = replace(method, task=replace(method.task, noise_source="seed"))
    policy = Policy((accepted_as(name, method),), max_epsilon=1e6)
    assert "the run's seed, which the server knows" in refusal(policy, seeded)
    assert not refusal(replace(policy, require_noise_source="any"), seeded)
    assert not refusal(policy, method)


@pytest.mark.parametrize("epsilon", [0.1, 9.8, 50.0])
def test_noise_that_rests_on_an_assumption_never_counts(epsilon):
    method = quick("prism", privacy="paper", epsilon=epsilon)
    method = replace(method, task=replace(method.task, noise_source="os"))
    for policy in (Policy(max_epsilon=1e9), Policy(least_unit="example"), Policy(tuple(MECHANISMS))):
        assert "rests on an assumption" in refusal(policy, method)
    assert not refusal(Policy(), method)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_without_noise_is_refused_by_policies_that_require_noise(name):
    method = quick(name, **({"privacy": "none"} if name in ("moments", "gswgan", "dpfedgan") else {}))
    assert method.mechanism is None
    for policy in (Policy(max_epsilon=1e9), Policy(least_unit="example"), Policy(("moments",))):
        assert "it adds no noise" in refusal(policy, method)
    assert not refusal(Policy(), method)
    assert "secagg_threshold=N" in refusal(Policy(require_secagg=True), method)


def test_secure_sums_without_noise_must_be_named_in_accept():
    summed = Adds(Task((1, 8, 8), 0, 3, 5, secagg_threshold=3, noise_source="os"))
    policy = Policy(("none",), require_secagg=True)
    assert not refusal(policy, summed)
    assert "it adds no noise" in refusal(Policy(require_secagg=True), summed)
    assert "numbers individually" in refusal(policy, Adds(Task((1, 8, 8), 0, 3, 5, noise_source="os")))


def test_secure_sums_whose_masks_follow_from_the_seed_are_refused():
    """The server knows the seed and could derive every mask."""
    summed = Adds(Task((1, 8, 8), 0, 3, 5, secagg_threshold=3))
    assert "the run's seed, which the server knows" in refusal(Policy(require_secagg=True), summed)
    private = replace(built("moments, alone"), task=Task((1, 8, 8), 10, 3, 3, secagg_threshold=2))
    assert "the run's seed, which the server knows" in refusal(Policy(require_secagg=True), private)


def test_accept_moments_refuses_shares_of_distributed_noise():
    """A server that controls 999 clients would read the other client's sums at ε = 66."""
    run = quick("moments", clients=1000, epsilon=1.0)
    run = replace(run, task=replace(run.task, noise_source="os", secagg_threshold=1000))
    own = epsilon([(Noise(run.mechanism.noise.multiplier / math.sqrt(1000), discrete=True), 1)], 1e-5)
    assert own == pytest.approx(66.3, abs=0.1)
    assert refusal(Policy(("moments",), max_epsilon=1.01), run)
    assert refusal(Policy(("moments",)), run)
    assert f"ε = {own:.4g}" in refusal(Policy(max_epsilon=own * 0.99), run)
    assert not refusal(Policy(max_epsilon=own * 1.01), run), "its own noise is enough for this ε"
    assert not refusal(Policy(("distributed-moments",), max_epsilon=1.01), run), "its owner trusts the other clients"


@pytest.mark.parametrize(
    "policy", [Policy(("moments",)), Policy(least_unit="example"), Policy(require_noise_source="os")]
)
def test_a_policy_without_a_maximum_has_a_default_maximum(policy):
    for multiplier in (1e-6, 0.01, 0.3):
        assert "ε = " in refusal(policy, built("moments, alone", noise_multiplier=multiplier))
    assert not refusal(policy, built("moments, alone"))
    assert not refusal(replace(policy, max_epsilon=100.0), built("moments, alone", noise_multiplier=0.3))


@pytest.mark.parametrize("policy", [Policy(("distributed-moments",)), Policy(("dp-fedavg",))])
def test_accept_alone_limits_answers_to_the_planned_number(policy):
    run = built("moments, secure" if policy.accept == ("distributed-moments",) else "fedgan, dp-fedavg")
    planned = 1 if policy.accept == ("distributed-moments",) else 3
    assert [bool(refusal(policy, run, given)) for given in range(5)] == [given >= planned for given in range(5)]


def test_more_answers_than_planned_are_refused_where_each_is_a_release():
    """ε was computed for the planned number of answers; further requests are refused."""
    method = built("prism, mask-update", rounds=3)
    policy = Policy(max_epsilon=cost(method))
    assert [bool(refusal(policy, method, given)) for given in range(5)] == [False, False, False, True, True]
    once = built("prism, moments", rounds=3)
    assert not refusal(Policy(max_epsilon=cost(once)), once, given=100), "all later answers are computed from the first"


def test_the_node_computes_epsilon_for_all_planned_rounds():
    policy = Policy(max_epsilon=cost(built("prism, mask-update", rounds=3, noise_multiplier=3.0)) * 1.0001)
    by_rounds = [refusal(policy, built("prism, mask-update", rounds=n, noise_multiplier=3.0)) for n in (2, 3, 4, 40)]
    assert [r == "" for r in by_rounds] == [True, True, False, False]
    assert "over 40 replies" in by_rounds[-1]


def test_an_empty_policy_refuses_nothing():
    assert from_config({"data": "mnist", "partition-id": 3}) == Policy()
    assert str(Policy()) == "anything"


def test_all_keys_of_a_config_are_read():
    policy = from_config(
        {"accept": "moments,dp-sgd", "least-unit": "example", "max-epsilon": 5, "max-delta": 1e-6,
         "require-secagg": True, "require-noise-source": "any"}
    )  # fmt: skip
    assert policy == Policy(("moments", "dp-sgd"), "example", 5.0, 1e-6, True, "any")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"accept": "momnets"}, "did you mean moments"),
        ({"accept": "paper"}, "rests on an assumption"),
        ({"least-unit": "pixel"}, "example or client"),
        ({"max-epsilon": 0}, "above 0"),
        ({"max-epsilon": -1.0}, "above 0"),
        ({"max-epsilon": True}, "must be a number"),
        ({"max-epsilon": "nan"}, "must be a number"),
        ({"max-epsilon": math.nan}, "must be a number"),
        ({"max-epsilon": 1.0, "max-delta": 0.5}, "below 0.5"),
        ({"max-delta": 1e-5}, "set max-epsilon too"),
        ({"require-secagg": "yes"}, "true or false"),
        ({"require-noise-source": "seed"}, "os or any"),
    ],
)
def test_invalid_configs_are_refused_with_a_reason(config, reason):
    with pytest.raises(VitrailError, match=reason):
        from_config(config)


def test_a_registered_mechanism_can_be_accepted(monkeypatch):
    monkeypatch.setattr(MECHANISMS, "_added", {})
    MECHANISMS.register("laplace-sums", "Laplace noise on sums")(lambda sums: sums)
    method = built("prism, mask-update")
    plugin = SimpleNamespace(
        task=method.task, mechanism=replace(method.mechanism, name="laplace-sums"), max_replies=method.max_replies
    )
    assert not refusal(from_config({"accept": "laplace-sums"}), plugin)
    assert "its mechanism is laplace-sums" in refusal(from_config({"accept": "mask-update"}), plugin)


def test_a_registered_mechanism_with_noise_of_the_server_is_accepted_by_its_prefix(monkeypatch):
    monkeypatch.setattr(MECHANISMS, "_added", {})
    MECHANISMS.register("laplace-sums", "Laplace noise on sums")(lambda sums: sums)
    method = built("prism, mask-update")
    mechanism = replace(method.mechanism, name="laplace-sums", noised_by="server")
    plugin = SimpleNamespace(task=method.task, mechanism=mechanism, max_replies=method.max_replies)
    assert not refusal(from_config({"accept": "server-laplace-sums"}), plugin)
    assert "its mechanism is server-laplace-sums" in refusal(from_config({"accept": "laplace-sums"}), plugin)
    with pytest.raises(VitrailError, match="no such mechanism"):
        from_config({"accept": "server-laplace"})
    assert from_config({"accept": "distributed-moments"}).accept == ("distributed-moments",)


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_every_registered_mechanism_has_a_noise_function_and_a_summary(name):
    assert callable(MECHANISMS[name])
    assert MECHANISMS.summary(name)


# -- in a round -----------------------------------------------------------------------------------------------------


def run_with_policies(method, folder, policies, rounds=1):
    """Run rounds in which each client has its own policy."""
    names, rng = sorted(policies), Rng((5,))
    simulated = SimulatedClients(method, RUN, rng, shares(len(names)), folder)
    fed, outcomes = Federation(0, method.server_init(rng.child("server", "init"))), []

    def ask(requests):
        for client, request in filter(None, requests):
            one = replace(simulated.client(client, digits().train), policy=policies[client])
            yield client, one.answer(request)

    for _ in range(rounds):
        fed, outcome = run_round(method, fed, RUN, names, ask, rng)
        outcomes.append(outcome)
    return fed, outcomes


def test_the_round_continues_without_the_client_that_refuses(tmp_path):
    method = built("prism, mask-update", rounds=2)
    strict = Policy(max_epsilon=1.0)
    fed, outcomes = run_with_policies(
        method, tmp_path / "a", {"client-0": None, "client-1": strict, "client-2": Policy()}, 2
    )
    for outcome in outcomes:
        assert not outcome.void
        assert outcome.replied == ["client-0", "client-2"]
        assert "costs ε = 9.8 at δ = 1e-05. The policy accepts" in outcome.excluded["client-1"]
        assert len(outcome.excluded["client-1"].encode()) < LONGEST_REASON
    assert fed.round == 2
    assert not (tmp_path / "a" / "client-1.safetensors").exists(), "it trained nothing and stored nothing"


def test_a_policy_that_accepts_a_run_changes_no_bit(tmp_path):
    method = quick("prism, moments", rounds=2)
    lax = Policy(("moments",), max_epsilon=9.8, require_noise_source="any")
    fed, outcomes = run_with_policies(method, tmp_path / "a", dict.fromkeys(shares(), lax), 2)
    start = Federation(0, method.server_init(Rng((5,)).child("server", "init")))
    plain, _, _ = federate(method, tmp_path / "b", fed=start)
    assert not outcomes[1].excluded
    assert same(fed.tree(), plain.tree())


def test_repeated_requests_get_only_the_planned_number_of_answers(tmp_path):
    """New exchanges of a round, and rounds beyond the plan: of two planned answers, the third is refused."""
    method = built("prism, mask-update", rounds=2)
    server, _ = method.start_round(method.server_init(Rng((5,))), ["client-0"], Rng((5,)))
    simulated = SimulatedClients(method, RUN, Rng((5,)), shares(1), tmp_path)
    client = replace(simulated.client("client-0", digits().train), policy=Policy(max_epsilon=9.81))
    kinds = []
    for t, exchange in ((0, 0), (0, 1), (0, 2), (1, 0), (7, 0)):
        out = method.broadcast(server, "client-0", True)
        parts = tuple(make_part(n, codec, a) for n, (codec, a) in out.parts.items())
        reply = decode(client.answer(encode(Message(Header(Kind.REQUEST, RUN, t, "server", exchange), parts))))
        kinds.append(reply.header.kind)
    assert kinds == [Kind.REPLY, Kind.REPLY, Kind.FAILED, Kind.FAILED, Kind.FAILED]


def test_secure_sums_work_under_a_policy_that_requires_them(tmp_path):
    method = secure(Adds(), 3)
    method = replace(method, task=replace(method.task, noise_source="os"))
    demands = Policy(("none",), require_secagg=True)
    _, outcomes = run_with_policies(method, tmp_path, {f"client-{k}": demands for k in range(5)})
    assert not outcomes[0].excluded
    assert len(outcomes[0].replied) == 5


@pytest.mark.parametrize(
    ("name", "changed", "reason"),
    [
        ("fedgan, dp-fedavg", {}, "noise of other parties counts only where accept names dp-fedavg"),
        ("moments, alone", {"noise_source": "seed"}, "the run's seed, which the server knows"),
    ],
)
def test_a_budget_alone_refuses_server_noise_and_seeded_noise(tmp_path, monkeypatch, name, changed, reason):
    """Version 0.1.0 sent an update without noise and charged ε = 5."""
    monkeypatch.setenv("VITRAIL_HOME", str(tmp_path))
    method = built(name, rounds=1)
    method = replace(method, task=replace(method.task, **changed))
    policy, budget = replace(Policy(), budget=True), Budget("scans", 50.0, 1e-5)
    server, _ = method.start_round(method.server_init(Rng((5,))), ["client-0"], Rng((5,)))
    out = method.broadcast(server, "client-0", True)
    parts = tuple(make_part(n, codec, a) for n, (codec, a) in out.parts.items())
    request = encode(Message(Header(Kind.REQUEST, RUN, 0, "server", 0), parts))
    simulated = SimulatedClients(method, RUN, Rng((5,)), shares(1), tmp_path / "clients")
    client = replace(simulated.client("client-0", digits().train), policy=policy, budget=budget)
    reply = decode(client.answer(request))
    assert reply.header.kind is Kind.FAILED
    assert reason in bytes(reply.parts[0].array()).decode()
    assert budget.spent() == []


def test_a_budget_is_charged_with_the_noise_that_counts(tmp_path, monkeypatch):
    """Where accept does not name the noise of other parties, only the client's own share counts."""
    monkeypatch.setenv("VITRAIL_HOME", str(tmp_path))
    method = built("moments, secure")
    whole = method.mechanism.noise.multiplier
    simulated = SimulatedClients(method, RUN, Rng((5,)), shares(1), tmp_path / "clients")
    for accept, multiplier in ((("distributed-moments",), whole), ((), whole / math.sqrt(2))):
        client = replace(simulated.client("client-0", digits().train), policy=replace(Policy(accept), budget=True))
        assert client.mechanism.noise.multiplier == pytest.approx(multiplier)
