"""The rules of an owner's policy (policy.py): each checks one property of a run and returns why it is refused.

`RULES` is the complete list. A rule applies where its `applies` is true for the policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from vitrail.privacy.accounting import epsilon
from vitrail.privacy.mechanism import Mechanism

if TYPE_CHECKING:
    from vitrail.privacy.policy import Policy


class TaskFacts(Protocol):
    """What the rules read of a run's task."""

    @property
    def secagg_threshold(self) -> int: ...
    @property
    def noise_source(self) -> str: ...


@dataclass(frozen=True)
class RunFacts:
    """What the rules check: facts that the node derives from the settings it received."""

    task: TaskFacts
    mechanism: Mechanism | None
    planned: int  # answers of one client; where there is a mechanism, those that are releases
    given: int  # answers so far

    @property
    def releases(self) -> int:
        """Releases after one more answer."""
        return self.mechanism.answers(self.given + 1) if self.mechanism else self.given + 1


@dataclass(frozen=True)
class Rule:
    """One reason to refuse a run.

    Args:
        name: Name of the rule.
        applies: Whether a policy has the rule.
        problem: Why a run is refused; empty if the run is accepted.
    """

    name: str
    applies: Callable[[Policy], bool]
    problem: Callable[[Policy, RunFacts], str]


def policy_name(mechanism: Mechanism) -> str:
    """Return the name of a mechanism in `accept`; it shows which party adds the noise.

    `dp-fedavg` is noise by the server by definition. Any other mechanism whose noise other parties add has a prefix.
    """
    if mechanism.noised_by == "client" or mechanism.name == "dp-fedavg":
        return mechanism.name
    return f"{'distributed' if mechanism.noised_by == 'all clients' else 'server'}-{mechanism.name}"


def _secagg(_: Policy, run: RunFacts) -> str:
    return "the server would see this client's numbers individually" if run.task.secagg_threshold < 2 else ""


def _noise_source(_: Policy, run: RunFacts) -> str:
    seeded = run.task.noise_source != "os"
    return "its noise and secrets come from the run's seed, which the server knows" if seeded else ""


def _noise(_: Policy, run: RunFacts) -> str:
    return "" if run.mechanism else "it adds no noise"


def _assumption(_: Policy, run: RunFacts) -> str:
    return f"{run.mechanism.name} rests on an assumption" if run.mechanism and run.mechanism.assumed else ""


def _public(_: Policy, run: RunFacts) -> str:
    return f"it releases, without noise, {run.mechanism.public}" if run.mechanism and run.mechanism.public else ""


def _accepted(policy: Policy, run: RunFacts) -> str:
    if run.mechanism is None or policy_name(run.mechanism) in policy.accept:
        return ""
    return f"its mechanism is {policy_name(run.mechanism)}, which accept does not name"


def _unit(_: Policy, run: RunFacts) -> str:
    if run.mechanism is None or run.mechanism.unit == "client":
        return ""
    return f"{run.mechanism.name} protects one {run.mechanism.unit}, not a client's whole data"


def _planned(_: Policy, run: RunFacts) -> str:
    return f"it has had the {_answers(run.planned)} that it planned for one client" * (run.releases > run.planned)


def _epsilon(policy: Policy, run: RunFacts) -> str:
    if run.mechanism is None:
        return ""
    counted = policy.counted(run.mechanism)
    eps = epsilon([(counted.noise, run.planned)], policy.max_delta)
    if math.isfinite(eps) and eps <= policy.limit * (1 + 1e-6):
        return ""
    cost = f"{eps:.4g}" if math.isfinite(eps) else "infinite"
    problem = f"{run.mechanism.name} over {_answers(run.planned)} costs ε = {cost} at δ = {policy.max_delta:g}"
    if counted == run.mechanism:
        return problem
    return (
        f"{problem} by this node's own noise; noise of other parties counts only where accept names "
        f"{policy_name(counted)}"
    )


NOISE_SOURCE = Rule("noise-source", lambda p: p.demands and p.require_noise_source != "any", _noise_source)
RULES = (
    Rule("secagg", lambda p: p.require_secagg, _secagg),
    NOISE_SOURCE,
    Rule("noise", lambda p: p.noise, _noise),
    Rule("assumption", lambda p: p.demands, _assumption),
    Rule("public", lambda p: p.demands, _public),
    Rule("accept", lambda p: bool(p.accept), _accepted),
    Rule("unit", lambda p: p.least_unit == "client", _unit),
    Rule("answers", lambda p: p.demands, _planned),
    Rule("epsilon", lambda p: p.demands, _epsilon),
)


def _answers(n: int) -> str:
    return "one answer" if n == 1 else f"{n} answers"
