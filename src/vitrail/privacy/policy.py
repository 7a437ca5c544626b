"""What a node's owner accepts: the least that a run must promise before the node answers.

The node builds the mechanism from the settings it was sent and computes ε itself, over all answers that the run plans
for one client. It counts the noise that it adds itself; noise that others add (all clients together, or the server)
counts only where `accept` names that mechanism. `RULES` is the whole policy; `budget` limits all runs (budget.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from vitrail.privacy.accounting import epsilon
from vitrail.privacy.mechanism import Mechanism, Unit
from vitrail.utils.errors import Refused, VitrailError, nearest

if TYPE_CHECKING:
    from vitrail.methods.base import Method, Task

MECHANISMS = ("moments", "distributed-moments", "mask-update", "dp-sgd", "dp-fedavg", "gradient")
NONE = "none"  # in `accept`: a run without a mechanism, too
KEYS = ("accept", "least-unit", "max-epsilon", "max-delta", "require-secure", "require-entropy")
DELTA = 1e-5
CEILING = 10.0  # the largest ε of one run where a policy names none
PUBLIC = "refused by the node's policy"  # all that the server is sent


@dataclass(frozen=True)
class Policy:
    """The least that an owner accepts. Without any demand, nothing is refused."""

    accept: tuple[str, ...] = ()  # mechanisms by `policy_name`, or NONE; empty: any with enough own noise
    least_unit: Unit | None = None  # "client" also refuses what protects less than a client's whole data
    max_epsilon: float | None = None  # of one run, at max_delta
    max_delta: float = DELTA
    require_secure: bool = False
    require_entropy: Literal["os", "any"] | None = None  # "any" also accepts noise from the run's seed: for trials
    budget: bool = False  # the node keeps a budget, which limits ε over all runs

    @property
    def demands(self) -> bool:
        """Whether the owner demands anything; then all implied rules hold."""
        return self._limited or self.budget

    @property
    def noise(self) -> bool:
        """Whether a run without a mechanism is refused."""
        numbers = self.least_unit is not None or self.max_epsilon is not None or self.budget
        return self.demands and (numbers or NONE not in self.accept)

    @property
    def limit(self) -> float:
        """The largest ε of one run; infinite where only a budget limits it, which every answer is charged to."""
        if self.max_epsilon is not None:
            return self.max_epsilon
        return CEILING if self._limited else math.inf

    @property
    def _limited(self) -> bool:
        named = bool(self.accept) or self.least_unit is not None or self.max_epsilon is not None
        return named or self.require_secure or self.require_entropy == "os"

    def counted(self, mechanism: Mechanism) -> Mechanism:
        """The mechanism with the noise that counts for this owner.

        Args:
            mechanism: as the run's settings give it.

        Returns:
            It, where `accept` names it; otherwise the same with only the noise that the node itself adds.
        """
        return mechanism if policy_name(mechanism) in self.accept else mechanism.own_noise()

    def refusals(self, method: Method, given: int = 0) -> dict[str, str]:
        """Why a run is refused: the reason by rule, in the order of RULES; empty: it is accepted.

        Args:
            method: the run's method, built by the node from the settings it was sent.
            given: the number of answers that the run has had from this node already.
        """
        mechanism = method.mechanism
        planned = method.max_replies
        run = Run(method.task, mechanism, mechanism.answers(planned) if mechanism else planned, given)
        found = {rule.name: rule.problem(self, run) for rule in RULES if rule.applies(self)}
        return {name: problem for name, problem in found.items() if problem}

    def check(self, method: Method, given: int = 0) -> None:
        """Refuse a run that promises less.

        Args:
            method: the run's method, built by the node from the settings it was sent.
            given: the number of answers that the run has had from this node already.

        Raises:
            Refused: with all reasons, for the owner; the server is sent PUBLIC.
        """
        if problems := self.refusals(method, given):
            said = "; ".join(problems.values())
            raise Refused(f"its owner's policy refuses this run: {said}. It takes part with: {self}", PUBLIC)

    def __str__(self) -> str:
        """What is accepted, in words."""
        terms = []
        if self.accept:
            terms.append(f"mechanism {' or '.join(self.accept)}")
        elif self.noise:
            terms.append("a mechanism whose noise this node adds itself")
        if self.least_unit == "client":
            terms.append("client-level protection")
        if self.noise and math.isfinite(self.limit):
            terms.append(f"ε of at most {self.limit:g} at δ = {self.max_delta:g} over the whole run")
        if self.budget:
            terms.append("what the node's budget still allows")
        if self.require_secure:
            terms.append("secure sums (secagg_threshold=N)")
        if _RULE_OF_ENTROPY.applies(self):
            terms.append("noise_source=os")
        return ", ".join(terms) or "anything"


@dataclass(frozen=True)
class Run:
    """What the rules look at: facts that the node derives from the settings it was sent."""

    task: Task
    mechanism: Mechanism | None
    planned: int  # answers of one client; where there is a mechanism, those that are releases
    given: int  # answers so far

    @property
    def releases(self) -> int:
        """Answers that count, with one more."""
        return self.mechanism.answers(self.given + 1) if self.mechanism else self.given + 1


@dataclass(frozen=True)
class Rule:
    """One reason to refuse: the policies that have it, and what is wrong with a run (empty: nothing)."""

    name: str
    applies: Callable[[Policy], bool]
    problem: Callable[[Policy, Run], str]


def policy_name(mechanism: Mechanism) -> str:
    """The name of a mechanism in `accept`, which says who adds the noise.

    `dp-fedavg` is the server's noise by definition; any other mechanism whose noise others add has a name of its own.
    """
    if mechanism.noised_by == "client" or mechanism.name == "dp-fedavg":
        return mechanism.name
    return f"{'distributed' if mechanism.noised_by == 'all clients' else 'server'}-{mechanism.name}"


def _secure(_: Policy, run: Run) -> str:
    return "the server would see this client's numbers singly" if run.task.secagg_threshold < 2 else ""


def _entropy(_: Policy, run: Run) -> str:
    seeded = run.task.noise_source != "os"
    return "its noise and secrets come from the run's seed, which the server knows" if seeded else ""


def _noise(_: Policy, run: Run) -> str:
    return "" if run.mechanism else "it adds no noise"


def _assumption(_: Policy, run: Run) -> str:
    return f"{run.mechanism.name} rests on an assumption" if run.mechanism and run.mechanism.assumed else ""


def _public(_: Policy, run: Run) -> str:
    return f"it says, without noise, {run.mechanism.public}" if run.mechanism and run.mechanism.public else ""


def _accepted(policy: Policy, run: Run) -> str:
    if run.mechanism is None or policy_name(run.mechanism) in policy.accept:
        return ""
    return f"its mechanism is {policy_name(run.mechanism)}, which accept does not name"


def _unit(_: Policy, run: Run) -> str:
    if run.mechanism is None or run.mechanism.unit == "client":
        return ""
    return f"{run.mechanism.name} protects one {run.mechanism.unit}, not a client's whole data"


def _planned(_: Policy, run: Run) -> str:
    return f"it has had the {_answers(run.planned)} that it planned for one client" * (run.releases > run.planned)


def _epsilon(policy: Policy, run: Run) -> str:
    if run.mechanism is None:
        return ""
    counted = policy.counted(run.mechanism)
    eps = epsilon([(counted.noise, run.planned)], policy.max_delta)
    if math.isfinite(eps) and eps <= policy.limit * (1 + 1e-6):
        return ""
    cost = f"{eps:.4g}" if math.isfinite(eps) else "infinite"
    says = f"{run.mechanism.name} over {_answers(run.planned)} costs ε = {cost} at δ = {policy.max_delta:g}"
    if counted == run.mechanism:
        return says
    return f"{says} by this node's own noise; noise of others counts only where accept names {policy_name(counted)}"


_RULE_OF_ENTROPY = Rule("entropy", lambda p: p.demands and p.require_entropy != "any", _entropy)
RULES = (
    Rule("secure", lambda p: p.require_secure, _secure),
    _RULE_OF_ENTROPY,
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


def from_config(config: Mapping[str, Any]) -> Policy:
    """Read the policy in a node config; other keys are ignored.

    >>> str(from_config({"accept": "moments, dp-sgd", "max-epsilon": 9.8, "data": "mnist"}))
    'mechanism moments or dp-sgd, ε of at most 9.8 at δ = 1e-05 over the whole run, noise_source=os'
    """
    accept = tuple(name.strip() for name in str(config.get("accept", "")).split(",") if name.strip())
    for name in accept:
        if name == "paper":
            raise VitrailError("accept=paper: it rests on an assumption that nothing enforces, so it is never accepted")
        if name not in (*MECHANISMS, NONE):
            raise VitrailError(f"accept={name}: no such mechanism; {nearest(name, (*MECHANISMS, NONE))}")
    unit = _one_of(config, "least-unit", ("example", "client"))
    entropy = _one_of(config, "require-entropy", ("os", "any"))
    secure = config.get("require-secure", False)
    if not isinstance(secure, bool):
        raise VitrailError(f"require-secure={secure}: must be true or false")
    largest = _number(config, "max-epsilon", 0.0, math.inf)
    delta = _number(config, "max-delta", 0.0, 0.5)
    if delta is not None and largest is None:
        raise VitrailError("max-delta is the δ at which max-epsilon is meant: set that too")
    return Policy(
        accept, cast(Unit | None, unit), largest, DELTA if delta is None else delta, secure,
        cast(Literal["os", "any"] | None, entropy),
    )  # fmt: skip


def _one_of(config: Mapping[str, Any], key: str, known: tuple[str, ...]) -> str | None:
    value = config.get(key)
    if value is not None and value not in known:
        raise VitrailError(f"{key}={value}: must be {' or '.join(known)}")
    return None if value is None else str(value)


def _number(config: Mapping[str, Any], key: str, above: float, below: float) -> float | None:
    value = config.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not above < value < below:
        bounds = f"above {above:g}" + (f" and below {below:g}" if math.isfinite(below) else "")
        raise VitrailError(f"{key}={value}: must be a number {bounds}")
    return float(value)
