"""What a node's owner accepts: the least that a run must promise about the node's data before the node answers.

A node checks the mechanism that it has itself built from the settings it was sent, and computes ε itself, over all
answers that the run plans for one client; what the server says of its own privacy counts for nothing. Noise that
others add (the server, or all clients together) counts only where the owner names the mechanism, because the node
cannot see it added. Noise from the run's seed hides nothing from the server, which knows the seed.

The limit is one run's. `budget` limits all runs together (budget.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from vitrail.errors import VitrailError, nearest
from vitrail.privacy.accounting import epsilon
from vitrail.privacy.mechanism import Mechanism, Unit

if TYPE_CHECKING:
    from vitrail.methods.base import Method

MECHANISMS = ("moments", "mask-update", "dp-sgd", "dp-fedavg", "gradient")  # `paper` rests on an assumption
KEYS = ("accept", "least-unit", "max-epsilon", "max-delta", "require-secure", "require-entropy")
DELTA = 1e-5


@dataclass(frozen=True)
class Policy:
    """The least that an owner accepts; nothing set: everything is."""

    accept: tuple[str, ...] = ()  # mechanisms; none: any
    least_unit: Unit | None = None  # "client" also takes nothing less than a client's whole data
    max_epsilon: float | None = None  # of one run, at max_delta
    max_delta: float = DELTA
    require_secure: bool = False
    require_entropy: Literal["os", "any"] | None = None  # None: os wherever noise is required

    @property
    def noise(self) -> bool:
        """Whether a run without a mechanism is refused."""
        return bool(self.accept) or self.least_unit is not None or self.max_epsilon is not None

    def check(self, method: Method, given: int = 0) -> None:
        """Refuse a run that promises less; `given` is how many answers it has had from this node already."""
        problem = self._problem(method, given)
        if problem:
            raise VitrailError(f"its owner's policy refuses this run: {problem}; it takes part with {self}")

    def __str__(self) -> str:
        """What would be accepted, in the words of a run's settings."""
        terms = []
        if self.noise:
            terms.append(f"privacy={' or '.join(self.accept or MECHANISMS)}")
        if self.least_unit == "client":
            terms.append("a client-level mechanism")
        if self.max_epsilon is not None:
            terms.append(f"ε of at most {self.max_epsilon:g} at δ = {self.max_delta:g} over the whole run")
        if self.require_secure:
            terms.append("secure sums (secure=N)")
        if self._os:
            terms.append("entropy=os")
        return ", ".join(terms) or "anything"

    @property
    def _os(self) -> bool:
        return self.require_entropy == "os" or (self.require_entropy is None and self.noise)

    def _problem(self, method: Method, given: int) -> str:
        """The first thing that is less than the owner accepts; empty: nothing is."""
        task, mechanism = method.task, method.mechanism
        if self.require_secure and task.secure < 2:
            return "the server would see this client's numbers singly"
        if self.noise and (mechanism is None or mechanism.assumed):
            return "it adds no noise" if mechanism is None else f"{mechanism.name} rests on an assumption"
        if self.noise and mechanism and mechanism.public:
            return f"it says, without noise, {mechanism.public}"
        if self._os and task.entropy != "os":
            return "its noise and secrets come from the run's seed, which the server knows"
        return self._less(mechanism, method, given) if self.noise and mechanism else ""

    def _less(self, mechanism: Mechanism, method: Method, given: int) -> str:
        named = mechanism.name in self.accept
        if self.accept and not named:
            return f"its mechanism is {mechanism.name}"
        if self.least_unit == "client" and mechanism.unit != "client":
            return f"{mechanism.name} protects one {mechanism.unit}, not a client's whole data"
        if self.max_epsilon is None:
            return ""
        if mechanism.noised_by != "client" and not named:
            who = "the server" if mechanism.noised_by == "server" else "all clients together"
            return f"the noise of {mechanism.name} is added by {who}, which counts only where accept names it"
        planned = mechanism.answers(int(getattr(method, "most_answers", method.task.rounds)))
        if mechanism.answers(given + 1) > planned:
            return f"it has had the {_answers(planned)} that it planned for one client"
        eps = epsilon([(mechanism.noise, planned)], self.max_delta)
        if eps > self.max_epsilon * (1 + 1e-6):
            cost = f"{eps:.4g}" if math.isfinite(eps) else "infinite"
            return f"{mechanism.name} over {_answers(planned)} costs ε = {cost} at δ = {self.max_delta:g}"
        return ""


def _answers(n: int) -> str:
    return "one answer" if n == 1 else f"{n} answers"


def from_config(config: Mapping[str, Any]) -> Policy:
    """The policy in a node's config; keys that are not its own are somebody else's.

    >>> str(from_config({"accept": "moments, dp-sgd", "max-epsilon": 9.8, "data": "mnist"}))
    'privacy=moments or dp-sgd, ε of at most 9.8 at δ = 1e-05 over the whole run, entropy=os'
    """
    accept = tuple(name.strip() for name in str(config.get("accept", "")).split(",") if name.strip())
    for name in accept:
        if name == "paper":
            raise VitrailError("accept=paper: it rests on an assumption that nothing enforces, so it is never accepted")
        if name not in MECHANISMS:
            raise VitrailError(f"accept={name}: no such mechanism; {nearest(name, MECHANISMS)}")
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
