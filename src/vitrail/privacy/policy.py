"""The policy of a node's owner: the minimum that a run must guarantee before the node answers.

The node builds the mechanism from the settings it received and computes ε itself, for all answers that the run plans
for one client. It counts only the noise that it adds itself. Noise of other parties (all clients together, or the
server) counts where `accept` names that mechanism. `Policy.rules` has all rules; budget.py limits ε over all runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from vitrail.privacy.accounting import epsilon
from vitrail.privacy.mechanism import MECHANISMS, Mechanism, Unit
from vitrail.utils.errors import Refused, VitrailError, nearest

NONE = "none"  # in `accept`: a run without a mechanism, too
KEYS = ("accept", "least-unit", "max-epsilon", "max-delta", "require-secagg", "require-noise-source")
PREFIXES = {"all clients": "distributed-", "server": "server-"}  # of mechanisms whose noise these parties add
DELTA = 1e-5
CEILING = 10.0  # the largest ε of one run where a policy names none
PUBLIC_REASON = "refused by the node's policy"  # the only text that the server receives


class Run(Protocol):
    """What a policy reads of a run: its method, built by the node from the settings it received, with its `Task`."""

    @property
    def mechanism(self) -> Mechanism | None: ...
    @property
    def max_replies(self) -> int: ...
    @property
    def task(self) -> Any: ...


@dataclass(frozen=True)
class Policy:
    """The minimum that an owner accepts. A policy without any requirement refuses nothing.

    Args:
        accept: Mechanisms by `policy_name`, or "none"; empty: any mechanism with enough noise of the node's own.
        least_unit: "client" refuses mechanisms that protect less than a client's whole data.
        max_epsilon: Largest ε of one run, at `max_delta`.
        max_delta: δ at which ε is computed.
        require_secagg: Accept only runs in which the server sees sums alone.
        require_noise_source: "any" also accepts noise from the run's seed: for trials.
        budget: The node has a budget, which limits ε over all runs.
    """

    accept: tuple[str, ...] = ()
    least_unit: Unit | None = None
    max_epsilon: float | None = None
    max_delta: float = DELTA
    require_secagg: bool = False
    require_noise_source: Literal["os", "any"] | None = None
    budget: bool = False

    @property
    def demands(self) -> bool:
        """Whether the owner requires anything; then all implied rules apply."""
        return self._limited or self.budget

    @property
    def noise(self) -> bool:
        """Whether a run without a mechanism is refused."""
        numbers = self.least_unit is not None or self.max_epsilon is not None or self.budget
        return self.demands and (numbers or NONE not in self.accept)

    @property
    def limit(self) -> float:
        """The largest ε of one run; infinite where only a budget, which every answer is charged to, limits it."""
        if self.max_epsilon is not None:
            return self.max_epsilon
        return CEILING if self._limited else math.inf

    @property
    def _limited(self) -> bool:
        named = bool(self.accept) or self.least_unit is not None or self.max_epsilon is not None
        return named or self.require_secagg or self.require_noise_source == "os"

    def counted(self, mechanism: Mechanism) -> Mechanism:
        """Return the mechanism with the noise that counts for this owner.

        Args:
            mechanism: The mechanism of the run's settings.

        Returns:
            The mechanism itself where `accept` names it; otherwise with only the noise that the node itself adds.
        """
        return mechanism if policy_name(mechanism) in self.accept else mechanism.own_noise()

    def rules(self, run: Run, given: int) -> Iterator[tuple[str, bool, str]]:
        """Yield the rules of this policy, each with its name, whether it refuses a run, and the reason.

        Args:
            run: The run's method.
            given: Number of answers that the run already had from this node.
        """
        m, task = run.mechanism, run.task
        if not self.demands:
            return
        if self.require_secagg:
            yield "secagg", task.secagg_threshold < 2, "the server would see this client's numbers individually"
        if self.require_noise_source != "any":
            seeded = task.noise_source != "os"
            yield "noise-source", seeded, "its noise and secrets come from the run's seed, which the server knows"
        planned, releases = run.max_replies, given + 1
        if m is None:
            yield "noise", self.noise, "it adds no noise"
        else:
            planned, releases = m.answers(planned), m.answers(releases)
            yield "assumption", bool(m.assumed), f"{m.name} rests on an assumption"
            yield "public", bool(m.public), f"it releases, without noise, {m.public}"
            name = policy_name(m)
            named = not self.accept or name in self.accept
            yield "accept", not named, f"its mechanism is {name}, which accept does not name"
            if self.least_unit == "client":
                yield "unit", m.unit != "client", f"{m.name} protects one {m.unit}, not a client's whole data"
        replies = "one reply" if planned == 1 else f"{planned} replies"
        yield "replies", releases > planned, f"it already received the {replies} that it planned for one client"
        if m is not None:
            yield "epsilon", *self._cost(m, planned, replies)

    def _cost(self, mechanism: Mechanism, planned: int, replies: str) -> tuple[bool, str]:
        """Return whether a run costs more than the limit, by the noise that counts, and the cost in words."""
        counted = self.counted(mechanism)
        eps = epsilon([(counted.noise, planned)], self.max_delta)
        cost = f"{eps:.4g}" if math.isfinite(eps) else "infinite"
        problem = f"{mechanism.name} over {replies} costs ε = {cost} at δ = {self.max_delta:g}"
        if counted != mechanism:
            problem += " by this node's own noise; noise of other parties counts only where accept names "
            problem += policy_name(counted)
        return not (math.isfinite(eps) and eps <= self.limit * (1 + 1e-6)), problem

    def check(self, run: Run, given: int = 0) -> None:
        """Refuse a run that guarantees less than this policy requires.

        Args:
            run: The run's method.
            given: Number of answers that the run already had from this node.

        Raises:
            Refused: With all reasons, for the owner; the server receives PUBLIC_REASON.
        """
        if reasons := "; ".join(reason for _, refuses, reason in self.rules(run, given) if refuses):
            raise Refused(f"its owner's policy refuses this run: {reasons}. The policy accepts: {self}", PUBLIC_REASON)

    def __str__(self) -> str:
        """What is accepted, in words."""
        most = f"ε of at most {self.limit:g} at δ = {self.max_delta:g} over the whole run"
        terms = (
            (self.accept, f"mechanism {' or '.join(self.accept)}"),
            (self.noise and not self.accept, "a mechanism whose noise this node adds itself"),
            (self.least_unit == "client", "client-level protection"),
            (self.noise and math.isfinite(self.limit), most),
            (self.budget, "what the node's budget still allows"),
            (self.require_secagg, "secure sums (secagg_threshold=N)"),
            (self.demands and self.require_noise_source != "any", "noise_source=os"),
        )
        return ", ".join(text for required, text in terms if required) or "anything"


def policy_name(mechanism: Mechanism) -> str:
    """Return the name of a mechanism in `accept`; it shows which party adds the noise.

    A sum of updates is noised by the server by definition. Any other mechanism whose noise other parties add has a
    prefix.
    """
    if mechanism.noised_by == "client" or (mechanism.noised_by, mechanism.noised) == ("server", "updates"):
        return mechanism.name
    return PREFIXES[mechanism.noised_by] + mechanism.name


def from_config(config: Mapping[str, Any]) -> Policy:
    """Read the policy in a node config.

    Args:
        config: The node config; keys other than KEYS are ignored.

    Raises:
        VitrailError: A value is not allowed, or `accept` names an unknown mechanism.

    Examples:
        >>> str(from_config({"accept": "moments, dp-sgd", "max-epsilon": 9.8, "data": "mnist"}))
        'mechanism moments or dp-sgd, ε of at most 9.8 at δ = 1e-05 over the whole run, noise_source=os'

        A plugin registers its mechanism under a name that owners can then accept:

        >>> @MECHANISMS.register("doctest-laplace", "Laplace noise on clipped sums")
        ... def add_laplace(sums, scale, draw):
        ...     return sums + draw.laplace(scale=scale, size=sums.shape)
        >>> from_config({"accept": "doctest-laplace", "max-epsilon": 2.0}).accept
        ('doctest-laplace',)
    """
    accept = tuple(name.strip() for name in str(config.get("accept", "")).split(",") if name.strip())
    for name in accept:
        plain = name.removeprefix(PREFIXES["all clients"]).removeprefix(PREFIXES["server"])
        if name != NONE and name not in MECHANISMS and plain not in MECHANISMS:
            raise VitrailError(
                f"accept={name}: no such mechanism, or it rests on an assumption; {nearest(name, (*MECHANISMS, NONE))}"
            )
    unit = _one_of(config, "least-unit", ("example", "client"))
    source = _one_of(config, "require-noise-source", ("os", "any"))
    secagg = config.get("require-secagg", False)
    if not isinstance(secagg, bool):
        raise VitrailError(f"require-secagg={secagg}: must be true or false")
    largest = _number(config, "max-epsilon", 0.0, math.inf)
    delta = _number(config, "max-delta", 0.0, 0.5)
    if delta is not None and largest is None:
        raise VitrailError("max-delta is the δ at which max-epsilon is computed: set max-epsilon too")
    return Policy(accept, unit, largest, DELTA if delta is None else delta, secagg, source)


def _one_of(config: Mapping[str, Any], key: str, known: tuple[str, ...]) -> Any:
    value = config.get(key)
    if value not in (None, *known):
        raise VitrailError(f"{key}={value}: must be {' or '.join(known)}")
    return value


def _number(config: Mapping[str, Any], key: str, above: float, below: float) -> float | None:
    value = config.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not above < value < below:
        bounds = f"above {above:g}" + (f" and below {below:g}" if math.isfinite(below) else "")
        raise VitrailError(f"{key}={value}: must be a number {bounds}")
    return float(value)
